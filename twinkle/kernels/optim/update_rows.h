// The loops of optimizers. Compiled once per instruction set (see simd.h). The last elements go
// through padded vectors, so that all see the same instructions.
#pragma once
#include "twinkle/kernels/simd/lanes.h"

namespace twinkle::kernels::TWINKLE_ISA {

inline void adam(const AdamFactors& f, const AdamArrays& arrays, int64_t n) {
  const AdamFactors c = f;
  for (int64_t i = 0; i < n; i += kLanes<float>) {
    const int64_t left = n - i;
    auto p = load<float>(arrays.value + i, left);
    auto m = load<float>(arrays.mean + i, left);
    auto v = load<float>(arrays.square + i, left);
    const auto g = load<float>(arrays.grad + i, left) * c.scale + p * c.l2;
    m = m + (g - m) * c.first;
    v = v * c.keep_second + g * g * c.second;
    p = p - (m * c.rate / (root(v) / c.root + c.eps) + p * c.shrink);
    store<float, float>(arrays.value + i, p, left);
    store<float, float>(arrays.mean + i, m, left);
    store<float, float>(arrays.square + i, v, left);
  }
}

inline void sgd(const SgdFactors& f, const SgdArrays& arrays, int64_t n) {
  const SgdFactors c = f;
  for (int64_t i = 0; i < n; i += kLanes<float>) {
    const int64_t left = n - i;
    auto p = load<float>(arrays.value + i, left);
    auto b = arrays.buffer == nullptr ? Lanes<float>{} : load<float>(arrays.buffer + i, left);
    const auto g = load<float>(arrays.grad + i, left) * c.scale + p * c.l2;
    b = b * c.momentum + g * c.share;
    p = p - (g * c.own + b * c.of_buffer) * c.rate;
    store<float, float>(arrays.value + i, p, left);
    if (arrays.buffer != nullptr) store<float, float>(arrays.buffer + i, b, left);
  }
}

inline double sum_of_squares(const float* x, int64_t n) {
  constexpr int lanes = kLanes<double>;
  Lanes<double> parts[4] = {};
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const auto v = load<double>(x + i + j * lanes);
      parts[j] = fma(v, v, parts[j]);
    }
  }
  for (; i < n; i += lanes) {
    const auto v = load<double>(x + i, n - i);
    parts[0] = fma(v, v, parts[0]);
  }
  return sum<double>((parts[0] + parts[1]) + (parts[2] + parts[3]));
}

}  // namespace twinkle::kernels::TWINKLE_ISA
