// The products of lora, float32 (float64) whatever the type of the rows. Compiled once per
// instruction set (see simd.h). A row of h or out depends on that row alone, and a gradient's
// element on its sequence alone, never on the tile that it is computed in.
#pragma once
#include "twinkle/kernels/simd/lanes.h"

namespace twinkle::kernels::TWINKLE_ISA {

// SplitMix64's finaliser (Steele et al. 2014): a good 64-bit mix, vectorisable, no state.
inline uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// factor[i] is 0 or 1 / (1 - p) for element begin + i of the sequence's row `token`.
template <class A>
void lora_mask(const LoraDropout& dropout, int64_t token, int64_t begin, int64_t count, A* factor) {
  const uint64_t row = mix(dropout.key + 0x9e3779b97f4a7c15ull * static_cast<uint64_t>(token + 1)) +
                       static_cast<uint64_t>(begin);
  const auto limit = static_cast<uint64_t>(dropout.p * 4294967296.0);
  const A keep = static_cast<A>(1.0 / (1.0 - dropout.p));
  for (int64_t i = 0; i < count; ++i) {
    factor[i] = (mix(row + static_cast<uint64_t>(i)) >> 32) < limit ? A{0} : keep;
  }
}

struct Columns {
  int64_t begin, count;
};

// to [rows][stride] = dropout(in) of the columns.
template <class T, class A>
void masked_rows(const LoraRows<T>& of, const T* in, Columns columns, A* to, int64_t stride) {
  for (int64_t t = 0; t < of.rows; ++t, in += of.width, to += stride) {
    lora_mask(of.dropout, of.first + t, columns.begin, columns.count, to);
    for (int64_t i = 0; i < columns.count; i += kLanes<A>) {
      const int64_t left = columns.count - i;
      store<A, A>(to + i, load<A>(in + columns.begin + i, left) * load<A>(to + i, left), left);
    }
  }
}

// Asks for the line of x, into the second cache.
inline void fetch(const void* x) { __builtin_prefetch(x, 0, 2); }

template <class In, class T, int kTokens, int kRanks>
struct DotTile {
  using A = Wide<T>;
  using Step = DotStep<In, T>;
  Lanes<A> sums[kTokens][kRanks];

  __attribute__((always_inline)) void add(const In* in, const T* factor, int64_t width,
                                          int64_t count) {
    typename Step::Left x[kTokens];
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) x[t] = Step::left(in + t * width, count);
#pragma GCC unroll 16
    for (int j = 0; j < kRanks; ++j) {
      const auto w = Step::right(factor + j * width, count);
#pragma GCC unroll 16
      for (int t = 0; t < kTokens; ++t) sums[t][j] = Step::add(x[t], w, sums[t][j]);
    }
  }
};

// h for kTokens rows and the ranks [j, j + kRanks).
template <int kTokens, int kRanks, class In, class T, class A>
inline void dots(const LoraRows<T>& of, int64_t j, const In* in, A* h) {
  using Tile = DotTile<In, T, kTokens, kRanks>;
  constexpr int n = kLanes<A>, kStep = Tile::Step::kCount, kSums = kTokens * kRanks;
  const int64_t width = of.width;
  const T *factor = of.factor + j * width, *next = of.next + j * width;
  Tile tile{};
  int64_t i = 0;
  for (; i + kStep <= width; i += kStep) {
    tile.add(in + i, factor + i, width, kStep);
    // A lone row's time is that of reading the factors.
#pragma GCC unroll 16
    for (int q = 0; kTokens == 1 && q < kRanks; ++q) fetch(next + q * width + i);
  }
  if (i < width) tile.add(in + i, factor + i, width, width - i);
  A out[kSums];
  if constexpr (kSums % n == 0) {
    for (int s = 0; s < kSums; s += n) store<A, A>(out + s, sums<A>(&tile.sums[0][0] + s));
  } else {
    for (int s = 0; s < kSums; ++s) out[s] = sum<A>(tile.sums[s / kRanks][s % kRanks]);
  }
  for (int t = 0; t < kTokens; ++t) {
    for (int q = 0; q < kRanks; ++q) h[t * of.rank + j + q] = of.scale * out[t * kRanks + q];
  }
}

template <int kTokens, class In, class T, class A>
inline void shrink_rows(const LoraRows<T>& of, const In* in, A* h) {
  // Sums at a time are as many as stay in registers.
  constexpr int kMax = kTokens == 1 && kVectorBytes == 64 ? 16 : kTokens == 1 ? 8 : 4;
  int64_t j = 0;
  for (; j + kMax <= of.rank; j += kMax) dots<kTokens, kMax>(of, j, in, h);
  if (kMax > 8 && j + 8 <= of.rank) dots<kTokens, 8>(of, j, in, h), j += 8;
  for (; j + 4 <= of.rank; j += 4) dots<kTokens, 4>(of, j, in, h);
  for (; j < of.rank; ++j) dots<kTokens, 1>(of, j, in, h);
}

template <class T, class A>
void lora_shrink(const LoraShrink<T>& s, A* scratch) {
  const LoraRows<T>& of = s.of;
  const auto run = [&](const auto* in, int64_t count, A* h) {
    if (count == kLoraTile) return shrink_rows<kLoraTile>(of, in, h);
    for (int64_t t = 0; t < count; ++t) shrink_rows<1>(of, in + t * of.width, h + t * of.rank);
  };
  for (int64_t t = 0; t < of.rows; t += kLoraTile) {
    const int64_t count = of.rows - t < kLoraTile ? of.rows - t : kLoraTile;
    const T* in = s.in + t * of.width;
    if (of.dropout.key == 0) {
      run(in, count, s.h + t * of.rank);
      continue;
    }
    LoraRows<T> some = of;
    some.rows = count, some.first = of.first + t;
    masked_rows(some, in, {0, of.width}, scratch, of.width);
    run(static_cast<const A*>(scratch), count, s.h + t * of.rank);
  }
}

// kRows rows of out, kVectors vectors from column `at` on, of which the last has `count` elements.
template <class T, class A, int kRows, int kVectors>
inline void expand_tile(const LoraExpand<T>& e, int64_t row, int64_t at, int64_t count,
                        const A* mask) {
  constexpr int n = kLanes<A>;
  const int64_t width = e.of.width, rank = e.of.rank;
  const A* h = e.h + row * rank;
  const T *factor = e.of.factor + at, *next = e.of.next + at;
  Lanes<A> sums[kRows][kVectors] = {};
  for (int64_t j = 0; j < rank; ++j, factor += width, next += width) {
    constexpr int kLine = 64 / sizeof(T);
#pragma GCC unroll 8
    for (int i = 0; kRows == 1 && i < kVectors * n; i += kLine) fetch(next + i);
    Lanes<A> w[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) w[v] = load<A>(factor + v * n, count);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const auto x = splat(h[r * rank + j]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[r][v] = fma(x, w[v], sums[r][v]);
    }
  }
  const auto scale = splat(e.of.scale);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      T* to = e.out + (row + r) * width + at + v * n;
      const auto old = load<A>(to, count);
      auto factors = scale;
      if (mask != nullptr) factors = scale * load<A>(mask + r * width + at + v * n, count);
      store<T, A>(to, fma(sums[r][v], factors, old), count);
    }
  }
}

template <class T, class A, int kRows>
inline void expand_rows(const LoraExpand<T>& e, int64_t row, const A* mask) {
  constexpr int n = kLanes<A>;
  int64_t i = 0;
  for (; i + 4 * n <= e.of.width; i += 4 * n) expand_tile<T, A, kRows, 4>(e, row, i, n, mask);
  for (; i + n <= e.of.width; i += n) expand_tile<T, A, kRows, 1>(e, row, i, n, mask);
  if (i < e.of.width) expand_tile<T, A, kRows, 1>(e, row, i, e.of.width - i, mask);
}

template <class T, class A>
void lora_expand(const LoraExpand<T>& e, A* scratch) {
  const int64_t width = e.of.width;
  for (int64_t t = 0; t < e.of.rows; t += kLoraTile) {
    const int64_t count = e.of.rows - t < kLoraTile ? e.of.rows - t : kLoraTile;
    A* mask = e.of.dropout.key == 0 ? nullptr : scratch;
    for (int64_t r = 0; mask != nullptr && r < count; ++r) {
      lora_mask(e.of.dropout, e.of.first + t + r, 0, width, mask + r * width);
    }
    if (count == kLoraTile) {
      expand_rows<T, A, kLoraTile>(e, t, mask);
      continue;
    }
    for (int64_t r = 0; r < count; ++r) {
      expand_rows<T, A, 1>(e, t + r, mask == nullptr ? mask : mask + r * width);
    }
  }
}

// Rows of some vectors, of which the last has `count` elements.
template <class In>
struct OuterRows {
  const In* in;
  int64_t stride, count;
};

// Adds h^T in for kRanks ranks and kVectors vectors of columns to sum.
template <int kRanks, int kVectors, class In, class T, class A>
inline void outer_tile(const LoraRows<T>& of, const A* h, OuterRows<In> rows, A* sum) {
  constexpr int n = kLanes<A>;
  Lanes<A> sums[kRanks][kVectors] = {};
  for (int64_t t = 0; t < of.rows; ++t, h += of.rank, rows.in += rows.stride) {
    Lanes<A> x[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) x[v] = load<A>(rows.in + v * n, rows.count);
#pragma GCC unroll 8
    for (int j = 0; j < kRanks; ++j) {
      const auto left = splat(h[j]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[j][v] = fma(left, x[v], sums[j][v]);
    }
  }
  const auto scale = splat(of.scale);
#pragma GCC unroll 8
  for (int j = 0; j < kRanks; ++j) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      A* to = sum + j * kLoraColumns + v * n;
      store<A, A>(to, fma(sums[j][v], scale, load<A>(to)));
    }
  }
}

template <int kVectors, class In, class T, class A>
inline void outer_ranks(const LoraOuter<T>& o, OuterRows<In> rows, A* sum) {
  int64_t j = 0;
  for (; j + 4 <= o.of.rank; j += 4) {
    outer_tile<4, kVectors>(o.of, o.h + j, rows, sum + j * kLoraColumns);
  }
  for (; j < o.of.rank; ++j) {
    outer_tile<1, kVectors>(o.of, o.h + j, rows, sum + j * kLoraColumns);
  }
}

template <class In, class T, class A>
inline void outer_columns(const LoraOuter<T>& o, const In* in, int64_t stride, A* sum) {
  constexpr int n = kLanes<A>;
  int64_t i = 0;
  const auto rows = [&](int64_t count) { return OuterRows<In>{in + i, stride, count}; };
  for (; i + 4 * n <= o.count; i += 4 * n) outer_ranks<4>(o, rows(n), sum + i);
  for (; i + n <= o.count; i += n) outer_ranks<1>(o, rows(n), sum + i);
  if (i < o.count) outer_ranks<1>(o, rows(o.count - i), sum + i);
}

template <class T, class A>
void lora_outer(const LoraOuter<T>& o, A* scratch) {
  if (o.of.dropout.key == 0) return outer_columns(o, o.in + o.begin, o.of.width, o.sum);
  masked_rows(o.of, o.in, {o.begin, o.count}, scratch, kLoraColumns);
  outer_columns(o, static_cast<const A*>(scratch), kLoraColumns, o.sum);
}

}  // namespace twinkle::kernels::TWINKLE_ISA
