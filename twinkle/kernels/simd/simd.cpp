#include "twinkle/kernels/simd/simd.h"

#include <ATen/Version.h>

#include <algorithm>
#include <string_view>

#include "twinkle/kernels/simd/simd_sets.h"

namespace twinkle::kernels {

std::vector<const Simd*> supported_simd() {
  std::vector<const Simd*> sets;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    if (__builtin_cpu_supports("avx512bf16")) sets.push_back(&avx512bf16::simd());
    sets.push_back(&avx512::simd());
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    sets.push_back(&avx2::simd());
  }
#endif
  sets.push_back(&portable::simd());
  return sets;
}

bool may_use_avx512() { return at::get_cpu_capability().starts_with("AVX512"); }

const Simd& best_simd() {
  static const Simd& best = []() -> const Simd& {
    const auto sets = supported_simd();
    const bool wide = may_use_avx512();
    return **std::ranges::find_if(sets, [&](const Simd* s) {
      return wide || !std::string_view(s->name).starts_with("avx512");
    });
  }();
  return best;
}

}  // namespace twinkle::kernels
