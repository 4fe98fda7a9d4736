// The loops of linear_f32 for a few vectors of rows, more of which would be worth a panel. Compiled
// once per instruction set (see simd.h), of use where vectors have 16 lanes. The rows are
// transposed once for all outputs, [block of 16 rows][input][row]. Weights whose inputs are
// contiguous are read in their own layout, and the lanes are rows: nothing is transposed but the
// sums. Of others the lanes are outputs; a run of inputs is used for all of them, while the next
// one comes from memory in its own order.
#pragma once
#include "twinkle/kernels/linear/linear_f32_product.h"
#include "twinkle/kernels/linear/products.h"

namespace twinkle::kernels::TWINKLE_ISA {

inline constexpr int64_t kMaxEmpty = 5;  // lanes: beyond, transposing weights costs less

template <class T>
inline bool is_few(const RunProduct<T>& p) {
  constexpr int n = kLanes<float>;
  if (n != 16 || !p.may_be_few() || p.outputs % n != 0) return false;
  return p.transposed || (sizeof(T) == sizeof(float) && (n - p.rows % n) % n <= kMaxEmpty);
}

template <class T>
inline void pack_rows(const RunProduct<T>& p, float* packed) {
  constexpr int n = kLanes<float>;
  for (int64_t row = 0; row < p.rows; row += n, packed += n * p.inputs) {
    for (int64_t i = 0; i < p.inputs; i += n) {
      Lanes<float> x[n];
#pragma GCC unroll 16
      for (int r = 0; r < n; ++r) {
        x[r] = row + r < p.rows ? load<float>(p.x + (row + r) * p.inputs + i, p.inputs - i)
                                : Lanes<float>{};
      }
      Transposer<float>::run(x);
      for (int k = 0; k < n && i + k < p.inputs; ++k) {
        store<float, float>(packed + (i + k) * n, x[k]);
      }
    }
  }
}

// Weights that a loop reads later, fetched into the second cache line by line: `lines` of each row.
struct FewAhead {
  const char* row;
  int64_t stride, lines, line = 0;  // bytes from row to row; the next of `row`

  inline void fetch(int count) {
    for (; count > 0; --count) {
      __builtin_prefetch(row + 64 * line, 0, 2);
      if (++line == lines) row += stride, line = 0;
    }
  }
};

// The totals of some outputs, whole vectors of a row, to y.
template <class T>
inline void put_whole(const RunProduct<T>& p, int64_t row, int64_t o, Lanes<float> total) {
  T* const to = p.y + row * p.outputs + o;
  if (p.bias) total += load<float>(p.bias + o);
  store<T, float>(to, p.adds ? load<float>(to) + total : total);
}

// One tile of kLanes outputs for kBlocks blocks of rows from `block` on.
template <int kBlocks>
__attribute__((noinline)) void lane_tile(const RunProduct<float>& p, const float* packed,
                                         int64_t block, int64_t o) {
  constexpr int n = kLanes<float>,
                kOutputs = kBlocks == 1 ? n : n / 2;  // outputs whose sums registers hold
  Lanes<float> total[kBlocks][n];                     // [output][row]
  FewAhead ahead{reinterpret_cast<const char*>(p.w + (o + n) * p.inputs), 0, INT64_MAX};
  const int num_ahead = block == 0 ? kOutputs : 0;
  packed += block * n * p.inputs;
  for (int first = 0; first < n; first += kOutputs) {
    const float* const w = p.w + (o + first) * p.inputs;
    for (int64_t begin = 0; begin < p.inputs; begin += kSumRun) {
      const int64_t end = p.inputs - begin > kSumRun ? begin + kSumRun : p.inputs;
      Lanes<float> sum[kOutputs][kBlocks];
#pragma GCC unroll 16
      for (int j = 0; j < kOutputs; ++j) {
        for (int b = 0; b < kBlocks; ++b) sum[j][b] = Lanes<float>{};
      }
      for (int64_t k = begin; k < end;) {
        const int64_t stop = end - k < n ? end : k + n;
        ahead.fetch(num_ahead);
        for (; k < stop; ++k) {
          Lanes<float> x[kBlocks];
          for (int b = 0; b < kBlocks; ++b) x[b] = load<float>(packed + (b * p.inputs + k) * n);
#pragma GCC unroll 16
          for (int j = 0; j < kOutputs; ++j) {
            const auto both = splat(w[j * p.inputs + k]);
            for (int b = 0; b < kBlocks; ++b) sum[j][b] = fma(x[b], both, sum[j][b]);
          }
        }
      }
#pragma GCC unroll 16
      for (int j = 0; j < kOutputs; ++j) {
        for (int b = 0; b < kBlocks; ++b) {
          Lanes<float>& to = total[b][first + j];
          to = begin ? to + sum[j][b] : sum[j][b];
        }
      }
    }
  }
  for (int64_t b = 0; b < kBlocks; ++b) {
    Transposer<float>::run(total[b]);
    const int64_t row = (block + b) * n;
    for (int64_t r = 0; r < n && row + r < p.rows; ++r) put_whole(p, row + r, o, total[b][r]);
  }
}

// Up to three blocks at a time, two where one would be left.
inline void lane_loop(const RunProduct<float>& p, const float* packed, int64_t first,
                      int64_t last) {
  constexpr int n = kLanes<float>;
  constexpr decltype(&lane_tile<1>) kTiles[] = {lane_tile<1>, lane_tile<2>, lane_tile<3>};
  const int64_t blocks = (p.rows + n - 1) / n;
  for (int64_t o = first; o < last; o += n) {
    for (int64_t b = 0; b < blocks;) {
      const int64_t left = blocks - b, count = left == 4 ? 2 : left < 3 ? left : 3;
      kTiles[count - 1](p, packed, b, o);
      b += count;
    }
  }
}

// A run of inputs for kLanes outputs and rows of one block. sums: [row][output].
template <class T>
struct ColumnRun {
  const float* x;
  const T* w;
  int64_t outputs, depth;
  float* sums;
  bool begins, fetches_right;  // the sums; the run's next outputs
};

template <int kRows, class T>
__attribute__((noinline)) void column_tile(const ColumnRun<T>& run, FewAhead& ahead) {
  constexpr int n = kLanes<float>;
  const float* const x = run.x;
  const T* w = run.w;
  Lanes<float> sum[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) sum[r] = Lanes<float>{};
  for (int64_t k = 0; k < run.depth;) {
    const int64_t stop = run.depth - k < n ? run.depth : k + n;
    ahead.fetch(n);
    if (run.fetches_right) {
      for (int64_t j = 0; j < stop - k; ++j) __builtin_prefetch(w + n + j * run.outputs, 0, 2);
    }
    for (; k < stop; ++k, w += run.outputs) {
      const Lanes<float> weights = load<float>(w);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) sum[r] = fma(splat(x[k * n + r]), weights, sum[r]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    float* const to = run.sums + r * n;
    store<float, float>(to, run.begins ? sum[r] : load<float>(to) + sum[r]);
  }
}

template <class T, int kRows = kLanes<float>>
inline void column_rows(int64_t rows, const ColumnRun<T>& run, FewAhead& ahead) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return column_rows<T, kRows - 1>(rows, run, ahead);
  }
  column_tile<kRows>(run, ahead);
}

// Outputs of which sums are kept at a time, of a part that ends at `end`.
struct ColumnStrip {
  int64_t first, last, end;
  bool begins;  // nothing of the part has been fetched
};

// Fetches the outputs from strip.last on at its end.
template <class T>
inline void column_loop(const RunProduct<T>& p, const float* packed, const ColumnStrip& strip,
                        float* sums) {
  constexpr int n = kLanes<float>;
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  const auto [first, last, end, strip_begins] = strip;
  for (int64_t begin = 0; begin < p.inputs; begin += kSumRun) {
    const int64_t depth = p.inputs - begin > kSumRun ? kSumRun : p.inputs - begin;
    const bool ends = begin + depth == p.inputs;
    FewAhead ahead{reinterpret_cast<const char*>(ends ? p.w + last
                                                      : p.w + (begin + depth) * p.outputs + first),
                   p.outputs * kSize, ((last - first) * kSize + 63) / 64};
    if (ends && last == end) ahead = {ahead.row, 0, 1};
    float* to = sums;
    for (int64_t o = first; o < last; o += n) {
      for (int64_t row = 0; row < p.rows; row += n, to += n * n) {
        const ColumnRun<T> run{.x = packed + row * p.inputs + begin * n,
                               .w = p.w + begin * p.outputs + o,
                               .outputs = p.outputs,
                               .depth = depth,
                               .sums = to,
                               .begins = begin == 0,
                               .fetches_right = strip_begins && begin == 0 && row == 0};
        column_rows<T>(p.rows - row < n ? p.rows - row : n, run, ahead);
      }
    }
  }
  for (int64_t o = first; o < last; o += n) {
    for (int64_t row = 0; row < p.rows; row += n, sums += n * n) {
      for (int64_t r = 0; r < n && row + r < p.rows; ++r) {
        put_whole(p, row + r, o, load<float>(sums + r * n));
      }
    }
  }
}

// Outputs [first, last). scratch: as of linear_runs.
template <class T>
inline void few_rows(const RunProduct<T>& p, int64_t first, int64_t last, float* scratch) {
  pack_rows(p, scratch);
  if constexpr (sizeof(T) == sizeof(float)) {
    if (!p.transposed) return lane_loop(p, scratch, first, last);
  }
  float* const sums = scratch + p.packed_size();
  for (int64_t o = first; o < last; o += kFewOutputs) {
    column_loop(p, scratch, {o, last - o < kFewOutputs ? last : o + kFewOutputs, last, o == first},
                sums);
  }
}

}  // namespace twinkle::kernels::TWINKLE_ISA
