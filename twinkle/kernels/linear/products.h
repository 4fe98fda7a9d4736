// Small matrix products, and squares transposed in registers. Compiled once per instruction set
// (see simd.h). Every element of a product is one chain of fused multiply-adds in the order of the
// depth: its bits do not depend on which other rows or columns are computed with it.
#pragma once
#include "twinkle/kernels/simd/lanes.h"

namespace twinkle::kernels::TWINKLE_ISA {

// c = a b; c += a b, the chain going on from c; c += a b, the chain beginning at zero.
enum class Into { kZero, kSum, kAdded };
enum class Left { kRowMajor, kColumnMajor };  // a[row][depth], or a[depth][row]

template <class A, int R, int N, Into into, Left left>
inline void product_block(const A* a, int64_t lda, const A* b, int64_t ldb, A* c, int64_t ldc,
                          int64_t depth) {
  Lanes<A> sums[R][N];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      sums[r][n] = into == Into::kSum ? load<A>(c + r * ldc + n * kLanes<A>) : Lanes<A>{};
    }
  }
  for (int64_t k = 0; k < depth; ++k, b += ldb) {
    Lanes<A> right[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) right[n] = load<A>(b + n * kLanes<A>);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const auto x = splat(left == Left::kRowMajor ? a[r * lda + k] : a[k * lda + r]);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sums[r][n] = fma(x, right[n], sums[r][n]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      A* to = c + r * ldc + n * kLanes<A>;
      store<A, A>(to, into == Into::kAdded ? load<A>(to) + sums[r][n] : sums[r][n]);
    }
  }
}

// `columns` of c, rounded up to whole vectors: b and c must be that wide.
template <class A, int R, Into into, Left left>
void product_rows(const A* a, int64_t lda, const A* b, int64_t ldb, A* c, int64_t ldc,
                  int64_t depth, int64_t columns) {
  constexpr int n = kLanes<A>;
  while (columns > 3 * n) {
    product_block<A, R, 4, into, left>(a, lda, b, ldb, c, ldc, depth);
    b += 4 * n, c += 4 * n, columns -= 4 * n;
  }
  if (columns > 2 * n) return product_block<A, R, 3, into, left>(a, lda, b, ldb, c, ldc, depth);
  if (columns > n) return product_block<A, R, 2, into, left>(a, lda, b, ldb, c, ldc, depth);
  if (columns > 0) return product_block<A, R, 1, into, left>(a, lda, b, ldb, c, ldc, depth);
}

template <class A, Into into, Left left, int R = kProductRows>
void product(int64_t rows, const A* a, int64_t lda, const A* b, int64_t ldb, A* c, int64_t ldc,
             int64_t depth, int64_t columns) {
  while (rows >= R) {
    product_rows<A, R, into, left>(a, lda, b, ldb, c, ldc, depth, columns);
    a += left == Left::kRowMajor ? R * lda : R;
    c += R * ldc;
    rows -= R;
  }
  if constexpr (R > 1) {
    if (rows > 0) product<A, into, left, R - 1>(rows, a, lda, b, ldb, c, ldc, depth, columns);
  }
}

// run(x): x[i][j] and x[j][i] change places, in a square of as many vectors as there are lanes.
template <class A>
struct Transposer {
  static constexpr int n = kLanes<A>;
  typedef typename Pack<typename LaneIndex<A>::Type, n>::type Index;

  // Exchanges the off-diagonal blocks of width `w` in the square of n vectors.
  template <int w>
  static void exchange(Lanes<A>* x) {
    Index low, high;
    for (int j = 0; j < n; ++j) {
      low[j] = (j & w) != 0 ? n + j - w : j;
      high[j] = (j & w) != 0 ? n + j : j + w;
    }
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) {
      if ((i & w) != 0) continue;
      const auto a = x[i], b = x[i + w];
      x[i] = __builtin_shuffle(a, b, low);
      x[i + w] = __builtin_shuffle(a, b, high);
    }
  }

  static void run(Lanes<A>* x) {
    if constexpr (n > 8) exchange<8>(x);
    if constexpr (n > 4) exchange<4>(x);
    if constexpr (n > 2) exchange<2>(x);
    exchange<1>(x);
  }
};

}  // namespace twinkle::kernels::TWINKLE_ISA
