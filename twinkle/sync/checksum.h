// Checksums of what a plan would send, to tell whether its receivers have all of it already.
#pragma once
#include <cstdint>
#include <vector>

#include "twinkle/sync/transfer.h"

namespace twinkle::sync {

// One for each message that this rank would send or receive, in the plan's order, of the bytes that
// it has there. On all threads; the same on every machine.
std::vector<uint64_t> checksums(const Plan& plan, int rank, const std::vector<Local>& locals);

// `ranks`: the checksums of each. True if both ends of every message have the same bytes.
bool are_equal(const Plan& plan, const std::vector<std::vector<uint64_t>>& ranks);

}  // namespace twinkle::sync
