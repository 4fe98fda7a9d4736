// The option --seed, which CLI11's own conversion would take for any integer, negative or too
// large.
#pragma once
#include <cstdint>
#include <string>

#include "twinkle/cli/command.h"

namespace twinkle::cli {

// `seed` holds the default and outlives the command. Error kInvalid: no integer of its range.
void add_seed(CLI::App& command, uint64_t& seed, const std::string& help);

}  // namespace twinkle::cli
