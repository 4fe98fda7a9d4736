// 64-byte vectors of the compiler's, and loads that convert: one source for AVX-512 and for
// machines without it, where the compiler splits them. Included by kernels' .cpp files alone;
// functions are inlined into target clones.
#pragma once
#include <c10/util/BFloat16.h>

#include <cstdint>
#include <cstring>

// One clone per instruction set, chosen when the program is loaded.
#define TWINKLE_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define TWINKLE_INLINE inline __attribute__((always_inline))

namespace twinkle::kernels {

typedef float F16 __attribute__((vector_size(64), aligned(4)));     // 16 floats, any address
typedef double D8 __attribute__((vector_size(64), aligned(8)));     // 8 doubles
typedef uint32_t U16 __attribute__((vector_size(64), aligned(4)));  // 16 words
typedef uint16_t H16 __attribute__((vector_size(32), aligned(2)));  // 16 halves

// The vector in which elements of T are computed.
template <class T>
struct Lanes {
  using Scalar = float;
  using Vector = F16;
  static constexpr int64_t n = 16;
};
template <>
struct Lanes<double> {
  using Scalar = double;
  using Vector = D8;
  static constexpr int64_t n = 8;
};

TWINKLE_INLINE void load(const float* p, F16& v) { std::memcpy(&v, p, 64); }
TWINKLE_INLINE void load(const double* p, D8& v) { std::memcpy(&v, p, 64); }
TWINKLE_INLINE void load(const c10::BFloat16* p, F16& v) {
  H16 h;
  std::memcpy(&h, p, 32);
  const U16 w = __builtin_convertvector(h, U16) << 16;
  std::memcpy(&v, &w, 64);
}
TWINKLE_INLINE void store(float* p, const F16& v) { std::memcpy(p, &v, 64); }
TWINKLE_INLINE void store(double* p, const D8& v) { std::memcpy(p, &v, 64); }
// Round to nearest even, NaN kept quiet: what c10::BFloat16 does.
TWINKLE_INLINE void store(c10::BFloat16* p, const F16& v) {
  U16 w;
  std::memcpy(&w, &v, 64);
  const U16 rounded = (w + 0x7fffu + ((w >> 16) & 1u)) >> 16;
  const auto is_nan = (U16)(v != v);
  const U16 bits = (is_nan & 0x7fc0u) | (~is_nan & rounded);
  const H16 h = __builtin_convertvector(bits, H16);
  std::memcpy(p, &h, 32);
}

}  // namespace twinkle::kernels
