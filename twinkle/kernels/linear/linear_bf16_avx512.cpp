// Weights are transposed, a few tiles at a time, into panels in which the 16 lanes of a vector are
// outputs; then every row adds its products. Few rows: a panel is one tile of 16 outputs and 32
// inputs, used while the next lines come from memory. Many: three tiles, so that 24 sums hide the
// latency of each other and a row's inputs are loaded once for all three. Where few rows nearly
// fill vectors of 16, the lanes are rows instead: those are transposed once for all outputs, and
// weights are read in their own layout. So they are for few rows of a transposed weight, whose
// outputs are contiguous: two of its lines in turn are a vector.
#include "twinkle/kernels/linear/linear_bf16_transpose.h"

#if defined(__x86_64__)
#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <utility>

namespace twinkle::kernels {
namespace {

constexpr int64_t kThinRows = 16;      // rows up to which memory, not arithmetic, is what is short
constexpr int kWide = 3;               // tiles of a wide panel
constexpr int64_t kWideDepth = 192;    // inputs of a wide panel: 18 KB, which the first cache holds
constexpr int64_t kWideRows = 512;     // rows whose sums stay in the second cache
constexpr int kThinGroup = 16;         // rows that add their products to one tile together
constexpr int64_t kLaneBlocks = 3;     // blocks of 16 rows, the most whose sums registers hold
constexpr int64_t kMostBlocks = 8;     // the most that are lanes, a few at a time
constexpr int64_t kEmptyLanes = 5;     // the most: transposing a tile of weights costs six rows
constexpr int64_t kColumnDepth = 128;  // inputs of a run: its lines stay in the first cache
constexpr int64_t kColumnOutputs = 512;  // outputs whose sums stay in the second cache

// sums[r][n] += x[r] panel[n], over `pairs` pairs of inputs, for kRows rows and kTiles tiles.
template <int kRows, int kTiles>
TWINKLE_BF16_INLINE void add_products(const uint16_t* x, int64_t stride, const uint32_t* panel,
                                      int64_t pairs, float* sums) {
  __m512 s[kRows][kTiles];
  for (int r = 0; r < kRows; ++r) {
    for (int n = 0; n < kTiles; ++n) s[r][n] = _mm512_load_ps(sums + (r * kTiles + n) * kTile);
  }
  for (int64_t k = 0; k < pairs; ++k) {
    __m512i w[kTiles];
    for (int n = 0; n < kTiles; ++n) w[n] = _mm512_load_si512(panel + (k * kTiles + n) * kTile);
    for (int r = 0; r < kRows; ++r) {
      int32_t pair;
      std::memcpy(&pair, x + r * stride + 2 * k, sizeof(pair));
      const __m512i both = _mm512_set1_epi32(pair);
      for (int n = 0; n < kTiles; ++n) {
        s[r][n] = _mm512_dpbf16_ps(s[r][n], (__m512bh)w[n], (__m512bh)both);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int n = 0; n < kTiles; ++n) _mm512_store_ps(sums + (r * kTiles + n) * kTile, s[r][n]);
  }
}

template <int kRows, int kTiles>
TWINKLE_BF16 void group(const uint16_t* x, int64_t stride, const uint32_t* panel, int64_t pairs,
                        float* sums) {
  add_products<kRows, kTiles>(x, stride, panel, pairs, sums);
}

using Group = void (*)(const uint16_t*, int64_t, const uint32_t*, int64_t, float*);
template <int kTiles, size_t... kRows>
constexpr auto groups_of(std::index_sequence<kRows...>) {
  return std::array<Group, sizeof...(kRows)>{group<kRows + 1, kTiles>...};
}

// Loops of 1, 2, ... rows, as many as leave their sums in registers, for kTiles tiles.
template <int kTiles>
constexpr auto kGroups = groups_of<kTiles>(std::make_index_sequence<kTiles == 1   ? 16
                                                                    : kTiles == 2 ? 12
                                                                                  : 8>());

template <int kRows>
TWINKLE_BF16_INLINE void add_pair(const uint16_t* x, int64_t stride, __m512i w, __m512* sums) {
  for (int j = 0; j < kRows; ++j) {
    int32_t pair;
    std::memcpy(&pair, x + j * stride, sizeof(pair));
    sums[j] = _mm512_dpbf16_ps(sums[j], (__m512bh)w, (__m512bh)_mm512_set1_epi32(pair));
  }
}

// One tile for kRows rows, whose sums stay in registers.
template <int kRows>
TWINKLE_BF16 void few_rows(const Bf16Product& p, int64_t o) {
  AheadSecond ahead{reinterpret_cast<const char*>(p.w + (o + kTile) * p.inputs)};
  __m512 s[kRows];
  for (int j = 0; j < kRows; ++j) s[j] = _mm512_setzero_ps();
  for (int64_t i = 0; i < p.inputs; i += kDepth) {
    __m512i c[16];
    turn_rows(p, o, i, ahead, c);
    const int64_t pairs = pairs_of(p.inputs - i);
    const uint16_t* x = p.x + i;
    if (pairs >= kTile) {  // the usual case, its loop unrolled
#pragma GCC unroll 16
      for (int k = 0; k < kTile; ++k) add_pair<kRows>(x + 2 * k, p.x_stride, c[k], s);
    } else {
      for (int64_t k = 0; k < pairs; ++k) add_pair<kRows>(x + 2 * k, p.x_stride, c[k], s);
    }
  }
  alignas(64) float sums[kRows * kTile];
  for (int j = 0; j < kRows; ++j) _mm512_store_ps(sums + j * kTile, s[j]);
  finish<1>(p, 0, kRows, o, sums);
}

template <int kRows>
TWINKLE_BF16 void few_rows_loop(const Bf16Product& p, int64_t first, int64_t last) {
  for (int64_t o = first; o < last; o += kTile) few_rows<kRows>(p, o);
}

// One tile for up to kThinRows rows.
TWINKLE_BF16 void thin_tile(const Bf16Product& p, int64_t o) {
  constexpr auto& groups = kGroups<1>;
  alignas(64) float sums[kThinRows * kTile];
  alignas(64) uint32_t panel[kTile * kTile];
  std::memset(sums, 0, static_cast<size_t>(p.rows * kTile) * sizeof(float));
  AheadSecond ahead{reinterpret_cast<const char*>(p.w + (o + kTile) * p.inputs)};
  for (int64_t i = 0; i < p.inputs; i += kDepth) {
    __m512i c[16];
    turn_rows(p, o, i, ahead, c);
    for (int k = 0; k < kTile; ++k) _mm512_store_si512(panel + k * kTile, c[k]);
    const int64_t pairs = std::min(kTile, pairs_of(p.inputs - i));
    const uint16_t* x = p.x + i;
    int64_t r = 0;
    for (; r + kThinGroup <= p.rows; r += kThinGroup) {
      if (pairs == kTile) {  // the usual case, its loop unrolled
        add_products<kThinGroup, 1>(x + r * p.x_stride, p.x_stride, panel, kTile, sums + r * kTile);
      } else {
        groups[kThinGroup - 1](x + r * p.x_stride, p.x_stride, panel, pairs, sums + r * kTile);
      }
    }
    if (r < p.rows) {
      groups[static_cast<size_t>(p.rows - r - 1)](x + r * p.x_stride, p.x_stride, panel, pairs,
                                                  sums + r * kTile);
    }
  }
  finish<1>(p, 0, p.rows, o, sums);
}

TWINKLE_BF16 void thin_loop(const Bf16Product& p, int64_t first, int64_t last) {
  for (int64_t o = first; o < last; o += kTile) thin_tile(p, o);
}

int64_t blocks_of(int64_t rows) { return (rows + kTile - 1) / kTile; }

// sums[o][b] += w[o] x[b] over 32 inputs, of kOutputs outputs and kBlocks blocks of 16 rows.
template <int kOutputs, int kBlocks>
TWINKLE_BF16_INLINE void add_lanes(const uint16_t* w, int64_t stride, const uint32_t* x,
                                   __m512 (*sums)[kBlocks]) {
#pragma GCC unroll 16
  for (int k = 0; k < kTile; ++k) {
    __m512i rows[kBlocks];
    for (int b = 0; b < kBlocks; ++b) rows[b] = _mm512_load_si512(x + (b * kTile + k) * kTile);
#pragma GCC unroll 16
    for (int o = 0; o < kOutputs; ++o) {
      int32_t pair;
      std::memcpy(&pair, w + o * stride + 2 * k, sizeof(pair));
      const __m512i both = _mm512_set1_epi32(pair);
      for (int b = 0; b < kBlocks; ++b) {
        sums[o][b] = _mm512_dpbf16_ps(sums[o][b], (__m512bh)both, (__m512bh)rows[b]);
      }
    }
  }
}

// One tile of 16 outputs for kBlocks blocks of rows.
template <int kBlocks>
TWINKLE_BF16 void lane_tile(const Bf16Product& p, int64_t block, int64_t o) {
  constexpr int kOutputs = kBlocks == 1 ? 16 : 8;  // outputs whose sums registers hold
  const int64_t step = blocks_of(p.rows) * kTile * kTile;
  const int num_ahead = block == 0 ? kOutputs : 0;
  alignas(64) float sums[kBlocks][kTile][kTile];  // [output][row]
  AheadSecond ahead{reinterpret_cast<const char*>(p.w + (o + kTile) * p.inputs)};
  for (int n = 0; n < kTile; n += kOutputs) {
    const uint16_t* const w = p.w + (o + n) * p.inputs;
    __m512 s[kOutputs][kBlocks];
    for (auto& of : s) {
      for (__m512& sum : of) sum = _mm512_setzero_ps();
    }
    const uint32_t* x = p.packed + block * kTile * kTile;
    for (int64_t i = 0; i < p.inputs; i += kDepth, x += step) {
      for (int k = 0; k < num_ahead; ++k) ahead.fetch();
      add_lanes<kOutputs, kBlocks>(w + i, p.inputs, x, s);
    }
    for (int k = 0; k < kOutputs; ++k) {
      for (int b = 0; b < kBlocks; ++b) _mm512_store_ps(sums[b][n + k], s[k][b]);
    }
  }
  for (int64_t b = 0; b < kBlocks; ++b) {
    __m512i c[16];
    for (int k = 0; k < kTile; ++k) c[k] = _mm512_load_si512(sums[b][k]);
    transpose(c);
    for (int k = 0; k < kTile; ++k) _mm512_store_si512(sums[b][k], c[k]);
    const int64_t row = (block + b) * kTile;
    finish<1>(p, row, std::min(kTile, p.rows - row), o, sums[b][0]);
  }
}

// How many of so many blocks are next: three, or two where one would be left.
int64_t next_blocks(int64_t left) { return left == 4 ? 2 : std::min(kLaneBlocks, left); }

TWINKLE_BF16 void lane_loop(const Bf16Product& p, int64_t first, int64_t last) {
  static constexpr decltype(&lane_tile<1>) kTiles[] = {lane_tile<1>, lane_tile<2>, lane_tile<3>};
  const int64_t blocks = blocks_of(p.rows);
  for (int64_t o = first; o < last; o += kTile) {
    for (int64_t b = 0; b < blocks;) {
      const int64_t count = next_blocks(blocks - b);
      kTiles[count - 1](p, b, o);
      b += count;
    }
  }
}

// Lines of memory that a run of inputs needs later, row by row, into the second cache.
struct LinesAhead {
  const uint16_t* row;
  int64_t stride, lines, line = 0;  // elements from row to row; the next one of `row`

  TWINKLE_BF16_INLINE void fetch(int64_t count) {
    for (; count > 0; --count) {
      _mm_prefetch(row + 32 * line, _MM_HINT_T1);
      if (++line == lines) row += stride, line = 0;
    }
  }
};

// A run of inputs of some tiles of a transposed weight, for rows of one block. x: of pack_rows, so
// many words from 32 inputs to the next; sums: [tile][row][16 outputs], so many floats from tile to
// tile.
struct ColumnRun {
  const uint16_t* w;
  int64_t outputs;
  const uint32_t* x;
  int64_t x_step, depth;
  float* sums;
  int64_t sums_step;
  bool begins, fetches_right;  // the sums; the run's next two tiles
  int64_t num_ahead;           // lines for each 32 inputs
};

// Begins the sums of kRows rows and kTiles tiles, or adds to them.
template <int kTiles, int kRows>
TWINKLE_BF16 void column_tiles(const ColumnRun& run, LinesAhead& ahead) {
  const __m512i in_turn = in_turn_of_two();
  const __m512i right = _mm512_add_epi16(in_turn, _mm512_set1_epi16(kTile));  // the second tile
  const uint16_t* w = run.w;
  const uint32_t* x = run.x;
  __m512 s[kRows][kTiles];
#pragma GCC unroll 16
  for (int j = 0; j < kRows; ++j) {
#pragma GCC unroll 2
    for (int n = 0; n < kTiles; ++n) {
      s[j][n] = run.begins ? _mm512_setzero_ps()
                           : _mm512_load_ps(run.sums + n * run.sums_step + j * kTile);
    }
  }
  for (int64_t i = 0; i < run.depth; i += kDepth, x += run.x_step) {
    ahead.fetch(run.num_ahead);
    if (run.fetches_right) {
      for (int k = 0; k < kDepth; ++k) _mm_prefetch(w + 2 * kTile + k * run.outputs, _MM_HINT_T1);
    }
#pragma GCC unroll 4
    for (int k = 0; k < kTile; ++k, w += 2 * run.outputs) {
      __m512i both[kTiles];
      if constexpr (kTiles == 2) {
        const __m512i first = _mm512_loadu_si512(w), second = _mm512_loadu_si512(w + run.outputs);
        both[0] = _mm512_permutex2var_epi16(first, in_turn, second);
        both[1] = _mm512_permutex2var_epi16(first, right, second);
      } else {
        both[0] = two_lines(w, w + run.outputs, in_turn);
      }
#pragma GCC unroll 16
      for (int j = 0; j < kRows; ++j) {
        const __m512i row = _mm512_set1_epi32(static_cast<int32_t>(x[k * kTile + j]));
#pragma GCC unroll 2
        for (int n = 0; n < kTiles; ++n) {
          s[j][n] = _mm512_dpbf16_ps(s[j][n], (__m512bh)both[n], (__m512bh)row);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int j = 0; j < kRows; ++j) {
#pragma GCC unroll 2
    for (int n = 0; n < kTiles; ++n) {
      _mm512_store_ps(run.sums + n * run.sums_step + j * kTile, s[j][n]);
    }
  }
}

template <int kTiles, size_t... kRows>
constexpr auto column_tiles_of(std::index_sequence<kRows...>) {
  return std::array<decltype(&column_tiles<1, 1>), sizeof...(kRows)>{
      column_tiles<kTiles, kRows + 1>...};
}

// kTiles tiles for so many rows: those of a block in two halves, so that a row's pair of inputs is
// read once for both tiles and all sums stay in registers.
template <int kTiles>
TWINKLE_BF16 void column_rows(int64_t rows, ColumnRun run, LinesAhead& ahead) {
  static constexpr auto kLoops =
      column_tiles_of<kTiles>(std::make_index_sequence<kTile / kTiles>());
  for (int64_t row = 0; row < rows;) {
    const int64_t left = std::min(kTile - row % kTile, rows - row);
    const int64_t count = left > std::ssize(kLoops) ? (left + 1) / 2 : left;
    ColumnRun part = run;
    part.x += row / kTile * kTile * kTile + row % kTile;
    part.sums += row * kTile;
    kLoops[static_cast<size_t>(count - 1)](part, ahead);
    run.fetches_right = false;
    row += count;
  }
}

// Some of its outputs, kColumnOutputs at most, for rows from `row` on, kLaneBlocks blocks at most.
struct ColumnStrip {
  int64_t first, last, row, rows;
};

// One run of inputs for all of the strip's outputs, while the next one comes from memory in its own
// order.
TWINKLE_BF16 void column_strip(const Bf16Product& p, const ColumnStrip& strip) {
  alignas(64) float sums[kLaneBlocks * kTile * kColumnOutputs];
  const int64_t of_tile = blocks_of(strip.rows) * kTile * kTile;
  const int64_t x_step = blocks_of(p.rows) * kTile * kTile;
  const int64_t parts =
      (strip.rows + kTile / 2 - 1) / (kTile / 2);  // about half a tile of rows each
  for (int64_t begin = 0; begin < p.inputs; begin += kColumnDepth) {
    const int64_t depth = std::min(kColumnDepth, p.inputs - begin);
    const bool fetches = strip.row == 0 && begin + depth < p.inputs;
    LinesAhead ahead{p.w + (begin + depth) * p.outputs + strip.first, p.outputs,
                     (strip.last - strip.first + 31) / 32};
    for (int64_t o = strip.first; o < strip.last; o += 2 * kTile) {
      const ColumnRun run{
          .w = p.w + begin * p.outputs + o,
          .outputs = p.outputs,
          .x = p.packed + begin / kDepth * x_step + strip.row * kTile,
          .x_step = x_step,
          .depth = depth,
          .sums = sums + (o - strip.first) / kTile * of_tile,
          .sums_step = of_tile,
          .begins = begin == 0,
          .fetches_right = begin == 0 && strip.row == 0 && o + 2 * kTile < strip.last,
          .num_ahead = fetches ? (kDepth + parts - 1) / parts : 0};
      strip.last - o > kTile ? column_rows<2>(strip.rows, run, ahead)
                             : column_rows<1>(strip.rows, run, ahead);
    }
  }
  for (int64_t o = strip.first; o < strip.last; o += kTile) {
    finish<1>(p, strip.row, strip.rows, o, sums + (o - strip.first) / kTile * of_tile);
  }
}

TWINKLE_BF16 void column_loop(const Bf16Product& p, int64_t first, int64_t last) {
  for (int64_t o = first; o < last; o += kColumnOutputs) {
    const int64_t end = std::min(last, o + kColumnOutputs);
    for (int64_t row = 0; row < p.rows;) {
      const int64_t rows = std::min(next_blocks(blocks_of(p.rows - row)) * kTile, p.rows - row);
      column_strip(p, {o, end, row, rows});
      row += rows;
    }
  }
}

// kWideDepth inputs from `begin` on of kTiles tiles into a panel [pair][tile][16 outputs]; fetches
// the next one.
template <int kTiles>
TWINKLE_BF16_INLINE void fill_panel(const Bf16Product& p, int64_t o, int64_t begin,
                                    AheadSecond& ahead, uint32_t* panel) {
  const int64_t end = std::min(p.inputs, begin + kWideDepth);
  for (int n = 0; n < kTiles; ++n) {
    for (int64_t i = begin; i < end; i += kDepth) {
      __m512i c[16];
      if (p.transposed) {
        turn_columns(p, o + n * kTile, i, c);
        if (n < 2) {  // a row's part of a panel is in two lines
          const uint16_t* next = p.w + i * p.outputs + o + kTiles * kTile + n * 2 * kTile;
          for (int k = 0; k < kDepth; ++k, next += p.outputs) _mm_prefetch(next, _MM_HINT_T1);
        }
      } else {
        turn_rows(p, o + n * kTile, i, ahead, c);
      }
      for (int64_t k = 0; k < kTile; ++k) {
        _mm512_store_si512(panel + (((i - begin) / 2 + k) * kTiles + n) * kTile, c[k]);
      }
    }
  }
}

// kTiles tiles, the last of which may reach beyond the outputs, for kWideRows rows.
template <int kTiles>
TWINKLE_BF16 void wide_tiles(const Bf16Product& p, int64_t o, int64_t first_row) {
  constexpr auto& groups = kGroups<kTiles>;
  alignas(64) uint32_t panel[kWideDepth / 2 * kTiles * kTile];
  alignas(64) float sums[kWideRows * kTiles * kTile];
  const int64_t rows = std::min(kWideRows, p.rows - first_row);
  std::memset(sums, 0, static_cast<size_t>(rows * kTiles * kTile) * sizeof(float));
  AheadSecond ahead{reinterpret_cast<const char*>(p.w + (o + kTiles * kTile) * p.inputs)};
  for (int64_t begin = 0; begin < p.inputs; begin += kWideDepth) {
    const int64_t end = std::min(p.inputs, begin + kWideDepth);
    fill_panel<kTiles>(p, o, begin, ahead, panel);
    for (int64_t r = 0; r < rows; r += std::ssize(groups)) {
      const int64_t count = std::min<int64_t>(std::ssize(groups), rows - r);
      groups[static_cast<size_t>(count - 1)](p.x + (first_row + r) * p.x_stride + begin, p.x_stride,
                                             panel, pairs_of(end - begin),
                                             sums + r * kTiles * kTile);
    }
  }
  for (int n = 0; n < kTiles; ++n) {
    finish<kTiles>(p, first_row, rows, o + n * kTile, sums + n * kTile);
  }
}

TWINKLE_BF16 void wide_loop(const Bf16Product& p, int64_t first, int64_t last) {
  static constexpr decltype(&wide_tiles<1>) kTiles[] = {wide_tiles<1>, wide_tiles<2>,
                                                        wide_tiles<kWide>};
  for (int64_t o = first; o < last; o += kWide * kTile) {
    const auto tiles = kTiles[std::min<int64_t>(kWide, blocks_of(last - o)) - 1];
    for (int64_t r = 0; r < p.rows; r += kWideRows) tiles(p, o, r);
  }
}

}  // namespace

// Weights are read in pairs of their own layout: no pair or tile may reach beyond them.
bool avx512_packs(const Bf16Product& p) {
  const int64_t blocks = blocks_of(p.rows);
  return p.rows > 0 && p.inputs % kDepth == 0 && p.outputs % kTile == 0 && blocks <= kMostBlocks &&
         (p.transposed || blocks * kTile - p.rows <= kEmptyLanes);
}

TWINKLE_BF16 void pack_rows(const Bf16Product& p, uint32_t* packed) {
  const Bf16Product rows{.w = p.x, .outputs = p.rows, .inputs = p.x_stride};
  AheadFirst ahead{reinterpret_cast<const char*>(p.x)};
  for (int64_t i = 0; i + kDepth <= p.inputs; i += kDepth) {
    for (int64_t r = 0; r < p.rows; r += kTile) {
      __m512i c[16];
      turn_rows(rows, r, i, ahead, c);
      for (int64_t k = 0; k < kTile; ++k, packed += kTile) _mm512_store_si512(packed, c[k]);
    }
  }
}

Bf16Loop avx512_loop(const Bf16Product& p) {
  static constexpr decltype(Bf16Loop::run) kThinLoops[] = {
      few_rows_loop<1>, few_rows_loop<2>, few_rows_loop<3>, few_rows_loop<4>,
      few_rows_loop<5>, few_rows_loop<6>, few_rows_loop<7>, few_rows_loop<8>};
  if (avx512_packs(p) && p.transposed) return {2 * kTile, column_loop};
  if (avx512_packs(p)) return {kTile, lane_loop};
  if (p.transposed || p.rows > kThinRows) return {kWide * kTile, wide_loop};
  if (p.rows > std::ssize(kThinLoops)) return {kTile, thin_loop};
  return {kTile, kThinLoops[std::max<int64_t>(1, p.rows) - 1]};
}

}  // namespace twinkle::kernels
#else
namespace twinkle::kernels {
Bf16Loop avx512_loop(const Bf16Product&) { return {}; }
bool avx512_packs(const Bf16Product&) { return false; }
void pack_rows(const Bf16Product&, uint32_t*) {}
}  // namespace twinkle::kernels
#endif
