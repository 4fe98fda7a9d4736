// The option --device, and where a command runs without it.
#pragma once
#include <string>

#include "twinkle/cli/command.h"

namespace twinkle::cli {

// `device` outlives the command; empty where the option was not given. Parsing throws Error
// kInvalid of a value that is no device's name.
void add_device(CLI::App& command, std::string& device);

// `given`, unless it is empty: then TWINKLE_DEVICE, else engine::default_device(). The reason why a
// GPU cannot be used goes to standard error. Error kInvalid: TWINKLE_DEVICE is no device's name.
std::string device_or_default(const std::string& given);

}  // namespace twinkle::cli
