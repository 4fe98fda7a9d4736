// The option --device, and where a command runs without it.
#pragma once
#include <string>

#include "twinkle/cli/command.h"

namespace twinkle::cli {

// `device` outlives the command; empty where the option was not given.
void add_device(CLI::App& command, std::string& device);

// `given`; if it is empty, TWINKLE_DEVICE; else "cuda" if an engine can run there, else "cpu". If a
// GPU cannot be used, standard error says so, with the reason.
std::string device_or_default(const std::string& given);

}  // namespace twinkle::cli
