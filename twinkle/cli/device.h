// The option --device, and where a command runs without it.
#pragma once
#include <string>

#include "twinkle/cli/command.h"

namespace twinkle::cli {

// `device` outlives the command; empty where the option was not given.
void add_device(CLI::App& command, std::string& device);

// `given`, unless it is empty: then what TWINKLE_DEVICE says, else "cuda" where an engine can run
// there, else "cpu". A GPU that cannot be used is told on standard error, with the reason.
std::string device_or_default(const std::string& given);

}  // namespace twinkle::cli
