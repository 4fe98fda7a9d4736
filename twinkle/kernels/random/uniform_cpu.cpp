#include <ATen/Parallel.h>

#include "twinkle/base/random.h"
#include "twinkle/kernels/random/uniform.h"

namespace twinkle::kernels {
namespace {

// One clone per instruction set, chosen when the program is loaded; each value is an integer hash
// and two float64 operations, the same bits in all.
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"))) void fill(
    uint64_t key, double bound, uint64_t begin, uint64_t end, float* out) {
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
