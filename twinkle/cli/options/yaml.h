// The options of a command from a YAML file, and back. Options are declared once, for the command
// line: a key is an option's long name without dashes in front, with '_' or '-'.
#pragma once
#include <CLI/CLI.hpp>

#include <filesystem>
#include <set>
#include <string>

namespace twinkle::cli {

// Sets the command's options from a file of `key: value` lines, but those that the command line
// gave. A list gives an option several times; null leaves it out. Error kNotFound: no such file;
// kInvalid, with file and line: no YAML, nested keys, an unknown key, one twice, one without a
// value, a list where one value is taken, or a value that the option does not take.
void read_yaml(CLI::App& command, const std::filesystem::path& file);

// All options that read_yaml can set, each with its value, or its default, and a comment. Those of
// `unsaid` are commented out, for what they are is found anew at each start; so are empty lists.
std::string as_yaml(const CLI::App& command, const std::set<const CLI::Option*>& unsaid = {});

}  // namespace twinkle::cli
