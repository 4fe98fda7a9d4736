// The program `twinkle`: its commands, and the one place where an error becomes an exit status.
#pragma once
#include <string>

namespace twinkle::cli {

// What main() returns. Standard output is flushed, and 1 where it did not take everything.
int run_program(int argc, const char* const* argv, const std::string& version);

}  // namespace twinkle::cli
