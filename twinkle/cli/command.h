// A command of the program: one file and one line in commands.def. Parsing is CLI11's; what it does
// is a few calls.
#pragma once
#include <CLI/CLI.hpp>

#include <functional>
#include <string>

namespace twinkle::cli {

// Runs a command whose arguments have been checked. `program` is what the user typed to start the
// program, for messages that name a command to type next.
using Action = std::function<void(const std::string& program)>;

// Adds the subcommand with its options. Parsing sets `action` when the subcommand was chosen, or
// throws what is wrong with its arguments: a CLI::ParseError, or an Error for a value out of range.
using Command = void (*)(CLI::App& app, Action& action);

}  // namespace twinkle::cli
