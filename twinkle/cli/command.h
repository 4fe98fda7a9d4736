// A command of the program: one file and one line in commands.def. Parsing is CLI11's; what it does
// is a few calls.
#pragma once
#include <CLI/CLI.hpp>

namespace twinkle::cli {

// Adds the subcommand with its options and what runs when it was chosen. Errors leave as
// exceptions, for main().
using Command = void (*)(CLI::App& app);

}  // namespace twinkle::cli
