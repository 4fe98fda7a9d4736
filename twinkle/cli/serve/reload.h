// The options of a server that runs, read again from its YAML file on SIGHUP.
#pragma once
#include <CLI/CLI.hpp>

#include <string>
#include <utility>
#include <vector>

#include "twinkle/cli/serve/options.h"

namespace twinkle::cli {

class ConfigFile {
 public:
  ConfigFile() = default;  // there is none
  // `command`: parsed, before read_yaml: what it has by now wins.
  ConfigFile(const CLI::App& command, const std::string& file);

  bool is_given() const { return !file_.empty(); }
  // The options as a start would find them now. Errors as of read_yaml and check_options.
  ServeOptions read() const;

 private:
  std::string file_;
  std::vector<std::pair<std::string, std::vector<std::string>>> given_;  // by flag
};

// Texts for the log, of each option that differs.
struct Reload {
  std::vector<std::string> changed;
  std::vector<std::string> kept;  // as they cannot change before the next start
};

// Takes over what can change while the server runs: names, the log's level, and limits of
// connections, bodies, sessions and silence.
Reload take_over(ServeOptions& running, ServeOptions next);

}  // namespace twinkle::cli
