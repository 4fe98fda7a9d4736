#include "twinkle/cli/model_path.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <csignal>
#include <cstdlib>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"
#include "twinkle/data/rows/files.h"
#include "twinkle/text/rows.h"

namespace twinkle::cli {
namespace {

namespace fs = std::filesystem;

// An adapter is no model, and its folder has no config.json of one.
void refuse_adapter(const std::string& path) {
  const fs::path folder = path;
  require(!is_there(folder / "adapter_config.json") || is_there(folder / "config.json"),
          Code::kInvalid, "cli: model '", path,
          "' is the directory of an adapter; give as MODEL the model that it was trained on, and "
          "the adapter to 'twinkle sample' as --adapter ",
          path);
}

// `cause` is the hub tool's, which most often begins with the id, too. `what` is "model" or "data".
[[noreturn]] void refuse(std::string_view what, const std::string& id, std::string_view cause) {
  const std::string name = "'" + id + "'";
  const bool named = cause.starts_with(name + " ");
  fail(Code::kNotFound, "cli: ", what, " ", name, named ? "" : ": ",
       named ? cause.substr(name.size()) : cause);
}

// The path that `python -m MODULE get ID OPTION` prints. Error kNotFound with what it said.
std::string ask(std::string_view what, const char* module, const std::string& id,
                const char* option = nullptr) {
  const char* python = std::getenv("TWINKLE_PYTHON");
  std::array<int, 2> ends{};
  require(::pipe(ends.data()) == 0, Code::kInternal, "cli: cannot create a pipe for the hub tool");
  const pid_t child = ::fork();
  require(child >= 0, Code::kInternal, "cli: cannot start the hub tool");
  if (child == 0) {
    ::alarm(3600);  // a download may take long, not for ever
    // Ctrl-C is the parent's, which says so; the child ends with it.
    ::signal(SIGINT, SIG_IGN);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    ::dup2(ends[1], STDOUT_FILENO);
    ::close(ends[0]);
    const char* program = python ? python : "python3";
    // Its own name comes first, because an environment's Python finds its packages by it. -P: no
    // file of the folder that the command runs in is imported.
    ::execlp(program, program, "-P", "-m", module, "get", "--errors-on-stdout", id.c_str(), option,
             nullptr);
    ::_exit(127);
  }
  ::close(ends[1]);
  std::string out;
  std::array<char, 4096> chunk{};
  for (ssize_t n; (n = ::read(ends[0], chunk.data(), chunk.size())) > 0;)
    out.append(chunk.data(), static_cast<size_t>(n));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  while (!out.empty() && out.back() == '\n') out.pop_back();
  const int ended = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (ended == 1 && !out.empty()) refuse(what, id, text::without_folder(out));
  require(ended == 0 && !out.empty(), Code::kNotFound, "cli: ", what, " '", id,
          "' is not a path here, and the hub tool, ", python ? python : "python3", " -m ", module,
          ", failed");
  return out.substr(out.rfind('\n') + 1);
}

}  // namespace

std::string model_path(const std::string& id, Download download) {
  if (is_there(id)) {
    refuse_adapter(id);
    return id;
  }
  return ask("model", "twinkle.hub", id, download == Download::kAll ? nullptr : "--no-weights");
}

std::string data_path(const std::string& id) {
  const auto is_read = [](const fs::path& file) {
    const data::FileKind kind = data::kind_of_file(file);
    return kind == data::FileKind::kLines || kind == data::FileKind::kWhole;
  };
  std::error_code error;
  if (fs::is_directory(id, error)) {
    if (std::ranges::all_of(data::files_at(id), is_read)) return id;
  } else if (is_read(id)) {
    const char* aliases = std::getenv("TWINKLE_DATASET_ID_ALIASES");
    const bool is_alias = aliases && std::string_view(aliases).find(id) != std::string_view::npos;
    if (is_there(id) || !is_alias) return id;
  }
  return ask("data", "twinkle.dataset.fetch", id);
}

bool is_adapter(const fs::path& folder) { return is_there(folder / "adapter_config.json"); }

void check_adapter(const std::string& folder, const std::string& field) {
  const fs::path path(folder);
  if (is_adapter(path)) return;
  std::string remedy = "name a directory that 'twinkle train' or peft saved an adapter to";
  if (is_adapter(path / "adapter")) remedy = "give the run's, " + (path / "adapter").string();
  fail(Code::kNotFound, "cli: ", field, " ", folder,
       is_there(folder) ? " holds no adapter_config.json" : " does not exist", "; ", remedy);
}

std::string model_name(const std::string& id) {
  if (is_there(id)) return id;
  std::string lower = id;
  std::transform(id.begin(), id.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (lower == "smollm2") return "smollm2-q4_1";  // rounded to 4 bits: not the hub's model
  const size_t mark = id.find("://");
  return mark == id.npos ? id : id.substr(mark + 3);
}

}  // namespace twinkle::cli
