// What a client reads of an error that names a file of the state: the tinker:// path of the
// checkpoint, or the file's place in the state, and never a path of this machine.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace twinkle::server {

class StatePaths {
 public:
  // `state`: absolute. Files are known by that path and by the one without symbolic links.
  explicit StatePaths(const std::filesystem::path& state);

  struct Told {
    std::string text;
    std::string first;  // that it names: "tinker://RUN/KIND/NAME", or "snapshots/RUN/7/null"
  };
  // Nothing: the text names no file of the state.
  std::optional<Told> told(std::string text) const;

 private:
  std::vector<std::string> beginnings_;  // of paths
};

}  // namespace twinkle::server
