#include "twinkle/cli/run/run_folder.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <system_error>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"
#include "twinkle/engine/checkpoint/persist.h"
#include "twinkle/io/atomic.h"

namespace twinkle::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kField = "cli: --output";
constexpr std::array kNames = {"config.yaml", "log.jsonl",   "loss.png", "adapter", "model",
                               "state",       "tensorboard", "wandb",    "swanlog"};

bool is_of_a_run(const std::string& name) {
  return std::ranges::count(kNames, name) > 0 || is_partial_name(name);
}

// As the name of a folder: letters, digits, '.', '_' and '-' of the data file's.
std::string name_of(std::string_view data) {
  std::string name = fs::path(data).stem().string().substr(0, 100);
  for (char& c : name) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!plain && c != '_' && c != '.') c = '-';
  }
  return name.empty() || name[0] == '.' || name[0] == '-' ? "run" + name : name;
}

}  // namespace

void check_run_folder(const RunFolder& folder, const fs::path& base, bool full, Earlier earlier) {
  const std::string shown = folder.path.string();
  require(!shown.empty(), Code::kInvalid, kField, " is empty; name a folder, or leave it out");
  check_writable(folder.path, kField);
  std::error_code error;
  require(!fs::equivalent(folder.path, base, error), Code::kInvalid, kField, " ", shown,
          " is the base model's own directory; name another");
  const std::vector<std::string> names = names_in(folder.path, error);
  for (const std::string& name : names)
    require(is_of_a_run(name), Code::kInvalid, kField, " ", shown, " holds '", name,
            "', which is no file of a run; name a new folder");
  for (const fs::path& saved : {folder.weights(full), folder.state()})
    engine::check_target(saved, base, kField);
  const bool holds_state = is_there(folder.state() / kTrainerState);
  const bool is_finished = is_there(folder.weights(false)) || is_there(folder.weights(true));
  if (earlier == Earlier::kReplace) return;
  if (earlier == Earlier::kResume) {
    require(holds_state, Code::kNotFound, kField, " ", shown, " has no ",
            (folder.state().filename() / kTrainerState).string(),
            ", so there is nothing to resume; ",
            full && is_finished ? "give its model as MODEL of a new run to train it longer"
                                : "name the folder of an earlier run, or leave --resume out");
    return;
  }
  require(!is_finished, Code::kConflict, kField, " ", shown, " holds a finished run; ",
          holds_state ? "give --resume and more --epochs to train it longer, " : "give ",
          "--overwrite to replace it, or name another folder");
  require(!holds_state, Code::kConflict, kField, " ", shown,
          " holds an interrupted run; give --resume to continue it, --overwrite to replace it, or "
          "name another folder");
}

RunFolder new_run_folder(std::string_view data) {
  std::error_code error;
  fs::create_directories(kOutputs, error);
  const std::string name = name_of(data);
  for (int64_t n = 1; !error; ++n) {
    const fs::path path = fs::path(kOutputs) / (name + "-" + std::to_string(n));
    if (fs::create_directory(path, error)) return {path};
    if (is_there(path)) error.clear();
  }
  fail(Code::kInvalid, "cli: no folder can be made in ", fs::absolute(kOutputs).string(), ": ",
       error.message(), "; name another by --output");
}

void link_latest(const RunFolder& folder) {
  const fs::path link = fs::path(kOutputs) / kLatest;
  const fs::path made =
      fs::path(kOutputs) / ("." + std::string(kLatest) + ".partial-" + std::to_string(::getpid()));
  std::error_code error;
  fs::remove(made, error);
  fs::create_directory_symlink(folder.path.filename(), made, error);
  if (!error) fs::rename(made, link, error);
  // A folder of that name is the user's, and stays.
  if (error) fs::remove(made, error);
}

fs::path latest_run() {
  const fs::path link = fs::path(kOutputs) / kLatest;
  std::error_code error;
  const fs::path target = fs::read_symlink(link, error);
  require(!error && is_there(link), Code::kNotFound, "cli: --resume: there is no ", link.string(),
          " here; name the folder of an earlier run by --output");
  return fs::path(kOutputs) / target;
}

void remove_if_unused(const RunFolder& folder) {
  std::error_code error;
  const std::vector<std::string> names = names_in(folder.path, error);
  const auto is_of_the_start = [&folder](const std::string& name) {
    return name == folder.config().filename() || name == folder.log().filename();
  };
  if (!error && std::ranges::all_of(names, is_of_the_start)) remove_tree(folder.path);
}

void clear(const RunFolder& folder) {
  for (const char* name : kNames) remove_tree(folder.path / name);
}

}  // namespace twinkle::cli
