// Element-wise loops over 16 floats at a time, one source for every instruction set. Included by
// this folder's .cpp files alone.
#pragma once
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include <cmath>
#include <cstdint>
#include <cstring>

// One clone per instruction set, chosen when the program is loaded; the sanitizers' runtimes are
// not up yet at that time.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TWINKLE_OPTIM_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TWINKLE_OPTIM_CLONES
#endif
#define TWINKLE_OPTIM_INLINE inline __attribute__((always_inline))

namespace twinkle::optim {

inline constexpr int64_t kLanes = 16;
typedef float F16 __attribute__((vector_size(64), aligned(4)));

TWINKLE_OPTIM_INLINE void load(const float* from, F16& v) { std::memcpy(&v, from, sizeof v); }
TWINKLE_OPTIM_INLINE void store(float* to, const F16& v) { std::memcpy(to, &v, sizeof v); }

// v = sqrt(v). A plain loop stays scalar: without -fno-math-errno sqrt may set errno.
TWINKLE_OPTIM_INLINE void square_root(F16& v) {
#ifdef __SSE2__
  __m128 quarter[4];
  std::memcpy(quarter, &v, sizeof v);
  for (__m128& q : quarter) q = _mm_sqrt_ps(q);
  std::memcpy(&v, quarter, sizeof v);
#else
  for (int i = 0; i < kLanes; ++i) v[i] = std::sqrt(v[i]);
#endif
}

// body(grad, value, a, b) over n elements of four arrays, of which the last three are written.
// The last n % 16 elements go through a padded copy, so that all of them see the same instructions.
// An array that is null is not touched.
template <class Body>
TWINKLE_OPTIM_INLINE void for_each(int64_t n, const float* grad, float* value, float* a, float* b,
                                   const Body& body) {
  int64_t i = 0;
  F16 g = {}, p = {}, x = {}, y = {};
  for (; i + kLanes <= n; i += kLanes) {
    load(grad + i, g);
    load(value + i, p);
    if (a) load(a + i, x);
    if (b) load(b + i, y);
    body(g, p, x, y);
    store(value + i, p);
    if (a) store(a + i, x);
    if (b) store(b + i, y);
  }
  if (i == n) return;
  const size_t rest = static_cast<size_t>(n - i) * sizeof(float);
  g = p = x = y = F16{};
  std::memcpy(&g, grad + i, rest);
  std::memcpy(&p, value + i, rest);
  if (a) std::memcpy(&x, a + i, rest);
  if (b) std::memcpy(&y, b + i, rest);
  body(g, p, x, y);
  std::memcpy(value + i, &p, rest);
  if (a) std::memcpy(a + i, &x, rest);
  if (b) std::memcpy(b + i, &y, rest);
}

}  // namespace twinkle::optim
