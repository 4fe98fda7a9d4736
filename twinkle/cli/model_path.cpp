#include "twinkle/cli/model_path.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "twinkle/base/error.h"

namespace twinkle::cli {

std::string model_path(const std::string& id) {
  if (std::filesystem::exists(id)) return id;
  const char* python = std::getenv("TWINKLE_PYTHON");
  std::array<int, 2> ends{};
  require(::pipe(ends.data()) == 0, Code::kInternal, "cli: cannot create a pipe for the hub tool");
  const pid_t child = ::fork();
  require(child >= 0, Code::kInternal, "cli: cannot start the hub tool");
  if (child == 0) {
    ::alarm(3600);  // a download may take long, not for ever
    ::dup2(ends[1], STDOUT_FILENO);
    ::close(ends[0]);
    const char* program = python ? python : "python3";
    // Its own name comes first, because an environment's Python finds its packages by it.
    ::execlp(program, program, "-m", "twinkle.hub", "get", id.c_str(), nullptr);
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
  require(WIFEXITED(status) && WEXITSTATUS(status) == 0 && !out.empty(), Code::kNotFound,
          "cli: model '", id, "' is not a path here, and the hub tool did not find it");
  return out.substr(out.rfind('\n') + 1);
}

std::string model_name(const std::string& id) {
  if (std::filesystem::exists(id)) return id;
  std::string lower = id;
  std::transform(id.begin(), id.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (lower == "smollm2") return "HuggingFaceTB/SmolLM2-135M-Instruct";
  const size_t mark = id.find("://");
  return mark == id.npos ? id : id.substr(mark + 3);
}

}  // namespace twinkle::cli
