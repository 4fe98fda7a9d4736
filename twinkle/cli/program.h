// The program `twinkle`: its commands, and the one place where an error becomes an exit status.
#pragma once
#include <string>

namespace twinkle::cli {

// The result of main(): 0, the command did what was asked; 1, an error of its input or its run, an
// interrupt, or a standard output that did not take everything; 2, wrong arguments. The error goes
// to standard error and begins with "twinkle: "; a pipe whose reader has closed it has none. The
// signals stay handled (train/interrupts.h), so
// that an interrupt ends the process with 1 until it is gone.
int run_program(int argc, const char* const* argv, const std::string& version);

}  // namespace twinkle::cli
