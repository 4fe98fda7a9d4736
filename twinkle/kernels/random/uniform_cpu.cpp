#include <ATen/Parallel.h>

#include "twinkle/base/random.h"
#include "twinkle/kernels/random/uniform.h"
#include "twinkle/kernels/simd/vec.h"

namespace twinkle::kernels {
namespace {

TWINKLE_CLONES void fill(uint64_t key, double bound, uint64_t begin, uint64_t end, float* out) {
  for (uint64_t k = begin; k < end; ++k)
    out[k] = static_cast<float>(bound * (2 * uniform_at(key, k) - 1));
}

}  // namespace

void fill_uniform(uint64_t key, double bound, std::span<float> out) {
  at::parallel_for(0, std::ssize(out), 16384, [&](int64_t begin, int64_t end) {
    fill(key, bound, static_cast<uint64_t>(begin), static_cast<uint64_t>(end), out.data());
  });
}

}  // namespace twinkle::kernels
