#include "twinkle/cli/run/run_log.h"

#include <cmath>

#include "twinkle/base/fields/options.h"
#include "twinkle/io/atomic.h"

namespace twinkle::cli {
namespace {

using std::chrono::seconds;

constexpr seconds kReads{10}, kEnds{120}, kChecks{60};

// As JSON, with numbers as people write them, 0.5 and not 5E-1.
std::string as_line(const JsonObject& line) {
  std::string out;
  for (const auto& [name, value] : line) {
    const bool is_plain = value.is_double() && std::isfinite(value.get_double());
    out += (out.empty() ? "{" : ",") + boost::json::serialize(Json(name)) + ":" +
           (is_plain ? told(value) : boost::json::serialize(value));
  }
  return out + "}\n";
}

}  // namespace

void check_trackers(const std::string& report_to) {
  if (report_to.empty()) return;
  PythonModule check({"report", "--check", "--to", report_to});
  const auto answer = check.receive(kChecks);
  require(answer.has_value(), Code::kInvalid, "cli: --report-to is '", report_to,
          "', and python -m twinkle.report, which writes to trackers, failed; leave it out");
  require(answer == "ok", Code::kInvalid, "cli: --report-to: ", *answer);
}

RunLog::RunLog(const RunFolder& folder, int64_t kept, const std::string& report_to)
    : file_(folder.log().string()) {
  if (kept > 0 && is_there(file_)) {
    std::string lines;
    std::ifstream in(file_);
    for (std::string line; std::getline(in, line);) {
      const auto read = json_in(line);
      if (!read || get_or<int64_t>(*read, "step", 0) > kept) continue;
      seconds_ = get_or<double>(*read, "seconds", seconds_);
      lines += line + '\n';
    }
    in.close();
    write_file_atomically(file_, lines);
  }
  out_.open(file_, kept > 0 ? std::ios::app : std::ios::trunc);
  std::vector<std::string> arguments{"report", folder.path.string()};
  if (!report_to.empty()) arguments.insert(arguments.end(), {"--to", report_to});
  reporter_.emplace(std::move(arguments), Answers::kNone);
}

void RunLog::give_up_reports(const std::string& why, Progress& progress) {
  reporter_.reset();
  progress.say("twinkle: " + why + "; " + file_ + " has all lines: python -m twinkle.report " +
               RunFolder{std::filesystem::path(file_).parent_path()}.path.string() + " < " + file_ +
               " draws them");
}

void RunLog::write(const JsonObject& line, Progress& progress) {
  const std::string text = as_line(line);
  if (!is_broken_ && !(out_ << text << std::flush)) {
    is_broken_ = true;
    progress.say("twinkle: " + file_ +
                 " cannot be written; is its disk full? The training goes on");
  }
  if (reporter_ && !reporter_->send(text, kReads))
    give_up_reports("the reporter of loss.png has ended; the training goes on", progress);
}

void RunLog::finish(Progress& progress) {
  if (!reporter_) return;
  const int status = reporter_->finish(kEnds);
  if (status != 0) give_up_reports("the reporter of loss.png has failed", progress);
}

}  // namespace twinkle::cli
