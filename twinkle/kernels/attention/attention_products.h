// The packing of key tiles, for the attention loops. Compiled once per instruction set (see
// simd.h).
#pragma once
#include "twinkle/kernels/linear/products.h"

namespace twinkle::kernels::TWINKLE_ISA {

// to[row][0 ..< width] = factor * from[row], zero up to `padded`.
template <class A, class T>
void widen_rows(const T* from, int64_t stride, int64_t rows, int64_t width, A factor, A* to,
                int64_t padded) {
  for (int64_t r = 0; r < rows; ++r, from += stride, to += padded) {
    for (int64_t i = 0; i < padded; i += kLanes<A>) {
      const int64_t count = width - i;
      store<A, A>(to + i, count > 0 ? load<A>(from + i, count) * splat(factor) : Lanes<A>{});
    }
  }
}

// to[i][row] = from[row][i] for i < width; to has kKeyTile columns, zero from `rows` on.
template <class A, class T>
void widen_transposed(const T* from, int64_t stride, int64_t rows, int64_t width, A* to) {
  constexpr int n = kLanes<A>;
  for (int64_t r = 0; r < kKeyTile; r += n) {
    for (int64_t i = 0; i < width; i += n) {
      Lanes<A> x[n];
#pragma GCC unroll 16
      for (int j = 0; j < n; ++j) {
        x[j] = r + j < rows ? load<A>(from + (r + j) * stride + i, width - i) : Lanes<A>{};
      }
      Transposer<A>::run(x);
#pragma GCC unroll 16
      for (int j = 0; j < n; ++j) {
        if (i + j < width) store<A, A>(to + (i + j) * kKeyTile + r, x[j]);
      }
    }
  }
}

}  // namespace twinkle::kernels::TWINKLE_ISA
