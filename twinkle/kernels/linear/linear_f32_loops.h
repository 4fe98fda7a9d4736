// The loops of linear_f32, and of linear_bf16's runs. Compiled once per instruction set (see
// simd.h). The lanes of a vector are outputs: each lane is one output's chain. Weights whose inputs
// are contiguous are transposed in registers, a square at a time. Few rows: a square is used at
// once, and memory bandwidth is the limit. Many: a panel of a run of inputs is kept in the first
// cache for all rows. In between: linear_f32_few.h.
#pragma once
#include "twinkle/kernels/linear/linear_f32_few.h"
#include "twinkle/kernels/linear/linear_f32_product.h"
#include "twinkle/kernels/linear/products.h"

namespace twinkle::kernels::TWINKLE_ISA {

// The weights of outputs o, o + 1, ... for inputs i, i + 1, ...: [input][output], `count` inputs,
// zeros behind them. Outputs beyond the last are the last again. Prefetches `ahead`, unless null,
// into the second cache; the first is full of the weights being read.
template <class T>
inline void transposed_weights(const RunProduct<T>& p, int64_t o, int64_t i, int64_t count,
                               const T* ahead, Lanes<float>* w) {
  constexpr int n = kLanes<float>;
#pragma GCC unroll 16
  for (int j = 0; j < n; ++j) {
    const int64_t row = o + j < p.outputs ? o + j : p.outputs - 1;
    w[j] = load<float>(p.w + row * p.inputs + i, count);
    if (ahead && j * n * static_cast<int>(sizeof(T)) % 64 == 0) {
      __builtin_prefetch(ahead + j * n, 0, 2);
    }
  }
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
    for (int64_t i = begin; i < end; i += n, ahead += n * n) {
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
static_assert(kWideTile % kPanelWidth == 0);

// Inputs [begin, end) of kPanelWidth outputs: [input][output]. Outputs beyond the last are of no
// use and finite where the weights are.
template <class T>
inline void fill_panel(const RunProduct<T>& p, int64_t o, int64_t begin, int64_t end,
                       float* panel) {
  constexpr int n = kLanes<float>;
  if (p.transposed && o + kPanelWidth <= p.outputs) {
    for (int64_t i = begin; i < end; ++i, panel += kPanelWidth) {
#pragma GCC unroll 8
      for (int v = 0; v < kPanelVectors; ++v) {
        store<float, float>(panel + v * n, load<float>(p.w + i * p.outputs + o + v * n));
      }
    }
    return;
  }
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
      for (int64_t i = begin; i < end; i += n) {
        const int64_t count = end - i < n ? end - i : n;
        Lanes<float> w[n];
        transposed_weights<T>(p, o, i, count, nullptr, w);
        for (int64_t k = 0; k < count; ++k) {
          store<float, float>(panel + (i + k - begin) * kPanelWidth, w[k]);
        }
      }
    }
  }
}

// A panel's weights in memory, fetched into the second cache while another panel is multiplied.
template <class T>
struct PanelAhead {
  const char* line;
  int64_t stride, bytes, lines;

  PanelAhead(const RunProduct<T>& p, int64_t o, int64_t begin)
      : line(reinterpret_cast<const char*>(p.transposed ? p.w + begin * p.outputs + o
                                                        : p.w + o * p.inputs + begin)),
        stride((p.transposed ? p.outputs : p.inputs) * static_cast<int64_t>(sizeof(T))),
        bytes((p.transposed ? kPanelWidth : kSumRun) * static_cast<int64_t>(sizeof(T))),
        lines(p.transposed ? kSumRun : kPanelWidth) {}

  void fetch(int64_t count) {
    for (; count > 0; --count, line += stride) {
      for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(line + byte, 0, 2);
    }
  }
};

// The product of a run of inputs with a panel.
template <class T>
struct PanelRun {
  const RunProduct<T>& p;
  int64_t o, begin, end;
  const float* panel;

  bool is_last() const { return end == p.inputs; }
  bool is_whole() const { return o + kPanelWidth <= p.outputs; }
};

// For a panel that reaches beyond the outputs.
template <class T>
inline void put_part(const PanelRun<T>& run, int64_t row, int64_t rows, const float* sums) {
  const RunProduct<T>& p = run.p;
  for (int64_t o = run.o; o < p.outputs; o += kLanes<float>, sums += kLanes<float>) {
    const int64_t count = p.outputs - o;
    const Lanes<float> bias = p.bias ? load<float>(p.bias + o, count) : Lanes<float>{};
    for (int64_t r = 0; r < rows; ++r) {
      const Lanes<float> total = load<float>(sums + r * kPanelWidth);
      put(p, row + r, o, p.bias ? total + bias : total);
    }
  }
}

// R rows of it: begins their sums or is added to them; the last run's go on to y. Fetches the next
// rows' inputs, whose lines are too far apart for the processor to foresee. Not inlined: where GCC
// 12 inlines it, it keeps the sums in memory.
template <int R, class T>
__attribute__((noinline)) void panel_tile(const PanelRun<T>& run, int64_t row, float* sums) {
  constexpr int n = kLanes<float>, N = kPanelVectors;
  constexpr int64_t kLine = 16;  // inputs
  const RunProduct<T>& p = run.p;
  const bool ends = run.is_last() && run.is_whole();
  if (ends) {
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < N; ++v) {
        __builtin_prefetch(p.y + (row + r) * p.outputs + run.o + v * n, 1, 3);
      }
    }
  }
  Lanes<float> sum[R][N];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) sum[r][v] = Lanes<float>{};
  }
  const float* w = run.panel;
  const float* x = p.x + row * p.inputs + run.begin;
  const int64_t depth = run.end - run.begin, stride = p.inputs;
  for (int64_t k = 0; k < depth;) {
    const int64_t stop = depth - k < kLine ? depth : k + kLine;
    for (int r = 0; r < R; ++r) __builtin_prefetch(x + (R + r) * stride + k, 0, 3);
    for (; k < stop; ++k, w += kPanelWidth) {
      Lanes<float> right[N];
#pragma GCC unroll 8
      for (int v = 0; v < N; ++v) right[v] = load<float>(w + v * n);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const auto left = splat(x[r * stride + k]);
#pragma GCC unroll 8
        for (int v = 0; v < N; ++v) sum[r][v] = fma(left, right[v], sum[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) {
      float* const to = sums + r * kPanelWidth + v * n;
      const Lanes<float> total = run.begin ? load<float>(to) + sum[r][v] : sum[r][v];
      if (ends) {
        put_whole(p, row + r, run.o + v * n, total);
      } else {
        store<float, float>(to, total);
      }
    }
  }
}

template <int R, class T>
void panel_rows(const PanelRun<T>& run, int64_t row, int64_t rows, float* sums,
                PanelAhead<T>& ahead) {
  const int64_t each = (ahead.lines * R + rows - 1) / rows;
  for (; rows >= R; rows -= R, row += R, sums += R * kPanelWidth) {
    ahead.fetch(each);
    panel_tile<R>(run, row, sums);
  }
  if constexpr (R > 1) {
    if (rows > 0) panel_rows<R - 1>(run, row, rows, sums, ahead);
  }
}

// Up to kWideOutputs outputs: a group of runs after the other, so that the rows' inputs come from
// the second cache for all panels but the first.
template <class T>
inline void wide_tile(const RunProduct<T>& p, int64_t o, int64_t last, int64_t first_row,
                      int64_t rows, float* scratch) {
  alignas(64) float panel[kSumRun * kPanelWidth];
  for (int64_t group = 0; group < p.inputs; group += kWideGroup) {
    const int64_t group_end = p.inputs - group > kWideGroup ? group + kWideGroup : p.inputs;
    float* sums = scratch;
    for (int64_t at = o; at < last; at += kPanelWidth, sums += rows * kPanelWidth) {
      for (int64_t begin = group; begin < group_end; begin += kSumRun) {
        const int64_t end = group_end - begin > kSumRun ? begin + kSumRun : group_end;
        fill_panel(p, at, begin, end, panel);
        PanelAhead<T> ahead = end < group_end           ? PanelAhead<T>(p, at, end)
                              : at + kPanelWidth < last ? PanelAhead<T>(p, at + kPanelWidth, group)
                                                        : PanelAhead<T>(p, o, group_end);
        const PanelRun<T> run{p, at, begin, end, panel};
        panel_rows<kPanelRows>(run, first_row, rows, sums, ahead);
        if (run.is_last() && !run.is_whole()) put_part(run, first_row, rows, sums);
      }
    }
  }
}

// Outputs [first, last), first a multiple of 16 where the product is thin, of kWideTile elsewhere.
// scratch: p.scratch_size() floats, 64-byte aligned.
template <class T>
void linear_runs(const RunProduct<T>& p, int64_t first, int64_t last, float* scratch) {
  if (p.is_thin()) {
    constexpr decltype(&thin_loop<1, T>) kLoops[] = {
        thin_loop<1, T>, thin_loop<2, T>, thin_loop<3, T>, thin_loop<4, T>,
        thin_loop<5, T>, thin_loop<6, T>, thin_loop<7, T>, thin_loop<8, T>};
    return kLoops[p.rows - 1](p, first, last);
  }
  if (is_few(p)) return few_rows(p, first, last, scratch);
  for (int64_t r = 0; r < p.rows; r += kWideRows) {
    const int64_t rows = p.rows - r < kWideRows ? p.rows - r : kWideRows;
    for (int64_t o = first; o < last; o += kWideOutputs) {
      wide_tile(p, o, last - o < kWideOutputs ? last : o + kWideOutputs, r, rows, scratch);
    }
  }
}

}  // namespace twinkle::kernels::TWINKLE_ISA
