#include "twinkle/data/writer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <utility>

#include "twinkle/base/file.h"
#include "twinkle/io/atomic.h"

namespace twinkle::data {
namespace {

bool finite(const Json& value) {
  if (value.is_double()) return std::isfinite(value.get_double());
  if (value.is_array())
    return std::all_of(value.get_array().begin(), value.get_array().end(), finite);
  if (!value.is_object()) return true;
  return std::all_of(value.get_object().begin(), value.get_object().end(),
                     [](const auto& field) { return finite(field.value()); });
}

void require_finite(const Rows& rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    for (const auto& [key, value] : rows[i]) {
      require(finite(value), Code::kInvalid, "data: row ", i, " field '", std::string_view(key),
              "' holds NaN or infinity, which JSON cannot");
    }
  }
}

std::string lines(const Rows& rows) {
  std::string out;
  for (const Row& row : rows) out += boost::json::serialize(row) + "\n";
  return out;
}

std::string cell(const Json* value) {
  if (!value || value->is_null()) return "";
  std::string text =
      value->is_string() ? std::string(value->get_string()) : boost::json::serialize(*value);
  if (!text.empty() && text.find_first_of(",\"\r\n") == text.npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  quoted += '"';
  return quoted;
}

std::string csv(const Rows& rows) {
  std::vector<std::string> columns;
  std::set<std::string, std::less<>> seen;
  for (const Row& row : rows) {
    for (const auto& field : row) {
      if (seen.emplace(field.key()).second) columns.emplace_back(field.key());
    }
  }
  std::string out;
  const auto add = [&](size_t column, const std::string& text) {
    if (column > 0) out += ',';
    out += columns.size() == 1 && text.empty() ? "\"\"" : text;  // a blank line would be skipped
  };
  for (size_t c = 0; c < columns.size(); ++c) {
    const Json name(columns[c]);
    add(c, cell(&name));
  }
  for (const Row& row : rows) {
    out += '\n';
    for (size_t c = 0; c < columns.size(); ++c) add(c, cell(row.if_contains(columns[c])));
  }
  out += '\n';
  return out;
}

}  // namespace

std::string format_rows(const Rows& rows, std::string_view format) {
  require_finite(rows);
  if (format == "jsonl" || format == "json") return lines(rows);
  if (format == "csv") return csv(rows);
  fail(Code::kInvalid, "data: cannot write format '", format, "', it must be jsonl, json or csv");
}

void make_place(const std::filesystem::path& file) {
  std::error_code ignored, error;
  require(!std::filesystem::is_directory(file, ignored), Code::kInvalid, "data: path is '",
          file.string(), "', a folder: name a file in it");
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  std::filesystem::create_directories(folder, error);
  if (!error) {
    std::string probe = (folder / ".twinkle-XXXXXX").string();
    const FileHandle made(::mkstemp(probe.data()));
    if (made.get() < 0) error.assign(errno, std::generic_category());
    if (made.get() >= 0) ::unlink(probe.c_str());
  }
  require(!error, Code::kInvalid, "data: path is '", file.string(),
          "', where no file can be written (", error.message(), "): name another place");
}

void write_rows(const Rows& rows, const std::filesystem::path& file, std::string_view format) {
  const std::string extension = file.extension().string();
  const std::string chosen =
      format.empty() && !extension.empty() ? extension.substr(1) : std::string(format);
  const std::string text = format_rows(rows, chosen);
  make_place(file);
  write_file_atomically(file, text);
}

LineWriter::LineWriter(std::filesystem::path file, int64_t batch_size)
    : file_(std::move(file)), batch_size_(batch_size) {}

void LineWriter::add(Row row) {
  kept_.push_back(std::move(row));
  if (std::ssize(kept_) >= batch_size_) flush();
}

void LineWriter::flush() {
  const Rows rows = std::exchange(kept_, {});
  require_finite(rows);
  const auto mode = std::exchange(is_begun_, true) ? std::ios::app : std::ios::trunc;
  std::ofstream out(file_, std::ios::binary | mode);
  out << lines(rows) << std::flush;
  require(out.good(), Code::kInternal, "data: cannot add rows to ", file_.string(), ": ",
          std::strerror(errno));
}

}  // namespace twinkle::data
