// The text of an error that names a file of the state, for a client: the checkpoint's path as
// RUN/KIND/NAME behind checkpoint://, for which a protocol writes its own scheme, or the file's
// place in the state, and never a path of this machine.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace twinkle::server::core {

class StatePaths {
 public:
  // `state`: absolute. Files are known by that path and by the one without symbolic links.
  explicit StatePaths(const std::filesystem::path& state);

  struct Told {
    std::string text;
    std::string first;  // that it names: "checkpoint://RUN/KIND/NAME", or "snapshots/RUN/7/null"
  };
  // Nothing: the text names no file of the state.
  std::optional<Told> told(std::string text) const;

 private:
  std::vector<std::string> beginnings_;  // the paths' own
};

}  // namespace twinkle::server::core
