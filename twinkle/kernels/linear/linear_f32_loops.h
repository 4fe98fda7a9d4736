// The loops of linear_f32, and of linear_bf16's runs. Compiled once per instruction set (see
// simd.h). The lanes of a vector are outputs: each lane is one output's chain. Weights whose inputs
// are contiguous are transposed in registers, a square at a time. Few rows: a square is used at
// once, and memory bandwidth is the limit. Many: a panel of a run of inputs is kept in the first
// cache for all rows.
#pragma once
#include "twinkle/kernels/linear/linear_f32_product.h"
#include "twinkle/kernels/linear/products.h"

namespace twinkle::kernels::TWINKLE_ISA {

// The weights of outputs o, o + 1, ... for inputs i, i + 1, ...: [input][output], `count` inputs,
// zeros behind them. Outputs beyond the last are the last again. Prefetches `ahead` into the second
// cache; the first is full of the weights being read.
template <class T>
inline void transposed_weights(const RunProduct<T>& p, int64_t o, int64_t i, int64_t count,
                               const T*& ahead, Lanes<float>* w) {
  constexpr int n = kLanes<float>;
#pragma GCC unroll 16
  for (int j = 0; j < n; ++j) {
    const int64_t row = o + j < p.outputs ? o + j : p.outputs - 1;
    w[j] = load<float>(p.w + row * p.inputs + i, count);
    if (j * n * static_cast<int>(sizeof(T)) % 64 == 0) __builtin_prefetch(ahead + j * n, 0, 2);
  }
  ahead += n * n;
  Transposer<float>::run(w);
}

// A row's outputs o, o + 1, ...
template <class T>
inline void put(const RunProduct<T>& p, int64_t row, int64_t o, Lanes<float> sum) {
  T* to = p.y + row * p.outputs + o;
  const int64_t count = p.outputs - o;
  store<T, float>(to, p.adds ? load<float>(to, count) + sum : sum, count);
}

template <int kRows, class T>
inline void thin_tile(const RunProduct<T>& p, int64_t o) {
  constexpr int n = kLanes<float>;
  const int64_t outputs = p.outputs - o;
  Lanes<float> total[kRows] = {};
  const T* ahead = p.w + (o + n) * p.inputs;  // only fetched, never read here
  for (int64_t begin = 0; begin < p.inputs; begin += kSumRun) {
    const int64_t end = p.inputs - begin > kSumRun ? begin + kSumRun : p.inputs;
    Lanes<float> sum[kRows] = {};
    for (int64_t i = begin; i < end; i += n) {
      const int64_t count = end - i < n ? end - i : n;
      Lanes<float> w[n];
      transposed_weights(p, o, i, count, ahead, w);
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
  for (int r = 0; r < kRows; ++r) put(p, r, o, total[r]);
}

template <int kRows, class T>
inline void thin_loop(const RunProduct<T>& p, int64_t first, int64_t last) {
  for (int64_t o = first; o < last; o += kLanes<float>) thin_tile<kRows, T>(p, o);
}

constexpr int kPanelVectors = 3;
constexpr int kPanelWidth = kPanelVectors * kLanes<float>;
constexpr int kPanelRows = kVectorBytes == 64 ? 8 : 4;  // with 3 vectors each
constexpr int64_t kPanelBlock = 512;                    // rows whose sums stay in the second cache
static_assert(kWideTile % kPanelWidth == 0);

// Inputs [begin, end) of kPanelWidth outputs: [input][output]. Outputs beyond the last are of no
// use and finite where the weights are.
template <class T>
inline void fill_panel(const RunProduct<T>& p, int64_t o, int64_t begin, int64_t end,
                       float* panel) {
  constexpr int n = kLanes<float>;
  for (int v = 0; v < kPanelVectors; ++v, o += n, panel += n) {
    if (o >= p.outputs) {
      for (int64_t i = begin; i < end; ++i) {
        store<float, float>(panel + (i - begin) * kPanelWidth, Lanes<float>{});
      }
    } else if (p.transposed) {
      for (int64_t i = begin; i < end; ++i) {
        store<float, float>(panel + (i - begin) * kPanelWidth,
                            load<float>(p.w + i * p.outputs + o, p.outputs - o));
      }
    } else {
      const T* ahead = p.w + (o + kPanelWidth) * p.inputs + begin;
      for (int64_t i = begin; i < end; i += n) {
        const int64_t count = end - i < n ? end - i : n;
        Lanes<float> w[n];
        transposed_weights(p, o, i, count, ahead, w);
        for (int64_t k = 0; k < count; ++k) {
          store<float, float>(panel + (i + k - begin) * kPanelWidth, w[k]);
        }
      }
    }
  }
}

template <class T>
inline void wide_tile(const RunProduct<T>& p, int64_t o, int64_t first_row, int64_t rows) {
  constexpr int n = kLanes<float>, R = kPanelRows;
  alignas(64) float panel[kSumRun * kPanelWidth];
  alignas(64) float sums[kPanelBlock * kPanelWidth];
  for (int64_t begin = 0; begin < p.inputs; begin += kSumRun) {
    const int64_t end = p.inputs - begin > kSumRun ? begin + kSumRun : p.inputs;
    fill_panel(p, o, begin, end, panel);
    const auto add = begin ? product<float, Into::kAdded, Left::kRowMajor, R>
                           : product<float, Into::kZero, Left::kRowMajor, R>;
    add(rows, p.x + first_row * p.inputs + begin, p.inputs, panel, kPanelWidth, sums, kPanelWidth,
        end - begin, kPanelWidth);
  }
  for (int v = 0; v < kPanelVectors && o < p.outputs; ++v, o += n) {
    const Lanes<float> bias = p.bias ? load<float>(p.bias + o, p.outputs - o) : Lanes<float>{};
    for (int64_t r = 0; r < rows; ++r) {
      const Lanes<float> sum = load<float>(sums + r * kPanelWidth + v * n);
      put(p, first_row + r, o, p.bias ? sum + bias : sum);
    }
  }
}

// Outputs [first, last), first a multiple of 16 where the product is thin, of kWideTile elsewhere.
template <class T>
void linear_runs(const RunProduct<T>& p, int64_t first, int64_t last) {
  if (p.is_thin()) {
    constexpr decltype(&thin_loop<1, T>) kLoops[] = {
        thin_loop<1, T>, thin_loop<2, T>, thin_loop<3, T>, thin_loop<4, T>,
        thin_loop<5, T>, thin_loop<6, T>, thin_loop<7, T>, thin_loop<8, T>};
    return kLoops[p.rows - 1](p, first, last);
  }
  for (int64_t o = first; o < last; o += kPanelWidth) {
    for (int64_t r = 0; r < p.rows; r += kPanelBlock) {
      wide_tile(p, o, r, p.rows - r < kPanelBlock ? p.rows - r : kPanelBlock);
    }
  }
}

}  // namespace twinkle::kernels::TWINKLE_ISA
