// The options of structs with a list of them (base/fields/options.h) on a command line.
#pragma once
#include <CLI/CLI.hpp>

#include <string>
#include <utility>
#include <vector>

#include "twinkle/base/fields/options.h"

namespace twinkle::cli {

// --token-budget for token_budget; --no-deterministic too for a flag whose default is true, and
// --names too for a list `name`. Parsing throws a CLI::ValidationError of a value that cannot be.
CLI::Option* add_option(CLI::App& command, const AnyOption& option);

// Those of all groups; or, with `names`, these, which there are. `options` outlives the command.
template <class T>
void add_options(CLI::App& command, T& options, const std::vector<std::string>& names = {}) {
  for (const AnyOption& one : options_of(options))
    if (names.empty() || std::ranges::count(names, one.name) > 0) add_option(command, one);
}

// The group of options that have no other, which CLI11 calls so.
inline constexpr const char* kFirstGroup = "Options";

// For a command of many options: --help tells these, and --help-all all, each in its group. The
// options are there.
void shorten_help(CLI::App& command, const std::vector<std::string>& names);

}  // namespace twinkle::cli
