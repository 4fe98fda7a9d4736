// Checksums of tensors' bytes, to tell whether two ranks have the same weights.
#pragma once
#include <cstdint>
#include <vector>

#include "twinkle/engine/weights/shelf.h"

namespace twinkle::sync {

// One for each, on all threads. The same on every machine.
std::vector<uint64_t> checksums(const std::vector<engine::Weight>& tensors);

}  // namespace twinkle::sync
