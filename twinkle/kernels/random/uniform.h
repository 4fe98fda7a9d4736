// Many numbers of one random stream at once: the bits of base/random.h's uniform_at, whatever the
// instruction set and the number of threads.
#pragma once
#include <cstdint>
#include <span>

namespace twinkle::kernels {

// out[k] = bound * (2 u - 1) with u = uniform_at(key, k): uniform in [-bound, bound), rounded once.
void fill_uniform(uint64_t key, double bound, std::span<float> out);

}  // namespace twinkle::kernels
