// The loop of linear_f32_thin. Compiled once per instruction set (see simd.h). Weights are turned
// in registers, a square at a time, so that the lanes of a vector are outputs: each lane then is
// one output's chain. Memory stays what is short.
#pragma once
#include "twinkle/kernels/linear/linear_f32_product.h"
#include "twinkle/kernels/simd/lanes.h"

namespace twinkle::kernels::TWINKLE_ISA {

// x[i][j] and x[j][i] change places: pairs of rows exchange blocks of 1, 2, 4 ... lanes.
template <int width = 1>
inline void transpose(Lanes<float>* x) {
  constexpr int n = kLanes<float>;
  typename Pack<int32_t, n>::type low, high;
  for (int j = 0; j < n; ++j) {
    low[j] = j & width ? n + j - width : j;
    high[j] = j & width ? n + j : j + width;
  }
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) {
    if (i & width) continue;
    const Lanes<float> a = x[i], b = x[i + width];
    x[i] = __builtin_shuffle(a, b, low);
    x[i + width] = __builtin_shuffle(a, b, high);
  }
  if constexpr (2 * width < n) transpose<2 * width>(x);
}

// The weights of outputs o, o + 1, ... for inputs i, i + 1, ...: [input][output], `count` inputs,
// zeros behind them. Outputs beyond the last are the last again. Fetches what lies `ahead`.
inline void turned_weights(const ThinProduct& p, int64_t o, int64_t i, int64_t count,
                           const float*& ahead, Lanes<float>* w) {
  constexpr int n = kLanes<float>;
#pragma GCC unroll 16
  for (int j = 0; j < n; ++j) {
    const int64_t row = o + j < p.outputs ? o + j : p.outputs - 1;
    w[j] = load<float>(p.w + row * p.inputs + i, count);
    if (j * kVectorBytes % 64 == 0) __builtin_prefetch(ahead + j * n);
  }
  ahead += n * n;
  transpose(w);
}

template <int kRows>
inline void thin_tile(const ThinProduct& p, int64_t o) {
  constexpr int n = kLanes<float>;
  const int64_t outputs = p.outputs - o;
  Lanes<float> total[kRows] = {};
  const float* ahead = p.w + (o + n) * p.inputs;  // only fetched, never read here
  for (int64_t begin = 0; begin < p.inputs; begin += p.run) {
    const int64_t end = p.inputs - begin > p.run ? begin + p.run : p.inputs;
    Lanes<float> sum[kRows] = {};
    for (int64_t i = begin; i < end; i += n) {
      const int64_t count = end - i < n ? end - i : n;
      Lanes<float> w[n];
      turned_weights(p, o, i, count, ahead, w);
      const float* x = p.x + i;
      if (count == n) {  // the usual case, its loop unrolled
#pragma GCC unroll 16
        for (int k = 0; k < n; ++k) {
          for (int r = 0; r < kRows; ++r) sum[r] = fma(splat(x[r * p.inputs + k]), w[k], sum[r]);
        }
      } else {
        for (int64_t k = 0; k < count; ++k) {
          for (int r = 0; r < kRows; ++r) sum[r] = fma(splat(x[r * p.inputs + k]), w[k], sum[r]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) total[r] = begin ? total[r] + sum[r] : sum[r];
  }
  if (p.bias) {
    const Lanes<float> bias = load<float>(p.bias + o, outputs);
    for (int r = 0; r < kRows; ++r) total[r] += bias;
  }
  for (int r = 0; r < kRows; ++r) store<float, float>(p.y + r * p.outputs + o, total[r], outputs);
}

template <int kRows>
inline void thin_loop(const ThinProduct& p, int64_t first, int64_t last) {
  for (int64_t o = first; o < last; o += kLanes<float>) thin_tile<kRows>(p, o);
}

// Outputs [first, last), first a multiple of 16.
inline void linear_thin(const ThinProduct& p, int64_t first, int64_t last) {
  constexpr decltype(&thin_loop<1>) kLoops[] = {thin_loop<1>, thin_loop<2>, thin_loop<3>,
                                                thin_loop<4>, thin_loop<5>, thin_loop<6>,
                                                thin_loop<7>, thin_loop<8>};
  for (int64_t r = 0; r < p.rows; r += kThinRows) {
    ThinProduct some = p;
    some.x += r * p.inputs;
    some.y += r * p.outputs;
    some.rows = p.rows - r < kThinRows ? p.rows - r : kThinRows;
    kLoops[some.rows - 1](some, first, last);
  }
}

}  // namespace twinkle::kernels::TWINKLE_ISA
