// Products by the tile unit (AMX): 16 rows by 16 columns, 32 inputs at a time, two tiles of rows by
// two of columns, so that four products share four loaded tiles. One operand is in a panel whose
// lanes are columns. Many rows: rows are x's, and weights are transposed into panels that the first
// cache holds. Few rows: rows are the weights', read in their own layout, and x is the panel.
#include "twinkle/kernels/linear/linear_bf16_transpose.h"

#if defined(__x86_64__)
#include <algorithm>
#include <cstring>

namespace twinkle::kernels {
namespace {

#define TWINKLE_AMX \
  __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#define TWINKLE_AMX_INLINE TWINKLE_AMX inline __attribute__((always_inline))

constexpr int kTwo = 2;             // tiles of rows, and of columns
constexpr int64_t kMaxBlocks = 18;  // blocks of kDepth inputs in a panel: 36 KB
constexpr int64_t kMaxRows = 1024;  // rows whose sums stay in the second cache
constexpr int64_t kTileWords = kTile * kTile;
constexpr int64_t kRow = kTwo * kTile;  // sums of a row

// How many rows, and bytes of a row, the tile registers have: Intel SDM, "Tile configuration".
struct alignas(64) TileShape {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int64_t num_rows, int64_t num_words) {
    rows[tile] = static_cast<uint8_t>(num_rows);
    bytes[tile] = static_cast<uint16_t>(num_rows > 0 ? num_words * 4 : 0);
  }
};

// For up to 32 rows: registers 0 to 3 sum [tile of rows][tile of columns], 4 and 5 hold rows, 6 and
// 7 the panel's tiles, of `columns` columns each.
TWINKLE_AMX void shape_for(int64_t rows, int64_t columns) {
  TileShape shape;
  for (int n = 0; n < kTwo; ++n) {
    const int64_t count = std::clamp<int64_t>(rows - n * kTile, 0, kTile);
    shape.set(n * kTwo, count, columns);
    shape.set(n * kTwo + 1, count, columns);
    shape.set(4 + n, count, kTile);
    shape.set(6 + n, kTile, columns);
  }
  asm volatile("" ::: "memory");  // GCC 12's tile intrinsics do not say what they read and write
  _tile_loadconfig(&shape);
}

struct Panel {
  const uint32_t* words;  // [block][tile][pair][column]
  int64_t tile_words, block_words;
  int64_t pair_bytes;  // from one pair's columns to the next one's

  Panel from(int64_t block) const {
    return {words + block * block_words, tile_words, block_words, pair_bytes};
  }
};

// sums[row][column], of 16 kRows rows (or the shape's fewer) and 16 kColumns columns, += rows x
// panel over `blocks` times kDepth inputs; from zero when `first`. Fetches kAhead lines a block.
template <int kRows, int kColumns, int kAhead = 0>
TWINKLE_AMX_INLINE void add_blocks(const uint16_t* rows, int64_t stride, const Panel& panel,
                                   int64_t blocks, bool first, AheadFirst& ahead, float* sums) {
  constexpr int64_t kRowBytes = kRow * sizeof(float);
  float* const below = sums + kTile * kRow;
  const uint16_t* const rows_below = rows + kTile * stride;
  const int64_t bytes = stride * 2;
  asm volatile("" ::: "memory");
  if (first) {
    _tile_zero(0);
    if constexpr (kColumns == 2) _tile_zero(1);
    if constexpr (kRows == 2) _tile_zero(2);
    if constexpr (kRows == 2 && kColumns == 2) _tile_zero(3);
  } else {
    _tile_loadd(0, sums, kRowBytes);
    if constexpr (kColumns == 2) _tile_loadd(1, sums + kTile, kRowBytes);
    if constexpr (kRows == 2) _tile_loadd(2, below, kRowBytes);
    if constexpr (kRows == 2 && kColumns == 2) _tile_loadd(3, below + kTile, kRowBytes);
  }
  for (int64_t b = 0; b < blocks; ++b) {
    const uint32_t* const w = panel.words + b * panel.block_words;
    _tile_loadd(6, w, panel.pair_bytes);
    _tile_loadd(4, rows + b * kDepth, bytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kColumns == 2) {
      _tile_loadd(7, w + panel.tile_words, panel.pair_bytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kRows == 2) {
      _tile_loadd(5, rows_below + b * kDepth, bytes);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (kRows == 2 && kColumns == 2) _tile_dpbf16ps(3, 5, 7);
    for (int n = 0; n < kAhead; ++n) ahead.fetch();
  }
  _tile_stored(0, sums, kRowBytes);
  if constexpr (kColumns == 2) _tile_stored(1, sums + kTile, kRowBytes);
  if constexpr (kRows == 2) _tile_stored(2, below, kRowBytes);
  if constexpr (kRows == 2 && kColumns == 2) _tile_stored(3, below + kTile, kRowBytes);
  asm volatile("" ::: "memory");
}

// The same for `count` rows and two tiles of columns.
TWINKLE_AMX_INLINE void add_rows(const uint16_t* rows, int64_t stride, int64_t count,
                                 const Panel& panel, int64_t blocks, bool first, float* sums) {
  AheadFirst none{};
  if (count > kTile) {
    add_blocks<2, 2>(rows, stride, panel, blocks, first, none, sums);
  } else {
    add_blocks<1, 2>(rows, stride, panel, blocks, first, none, sums);
  }
}

// `blocks` times kDepth inputs from `begin` on of 32 outputs, as [block][tile][pair][16 outputs].
TWINKLE_AMX_INLINE void fill_panel(const Bf16Product& p, int64_t o, int64_t begin, int64_t blocks,
                                   AheadFirst& ahead, uint32_t* panel) {
  for (int n = 0; n < kTwo; ++n) {
    const int64_t output = o + n * kTile;
    for (int64_t b = 0; b < blocks; ++b) {
      __m512i c[16];
      uint32_t* const to = panel + (b * kTwo + n) * kTileWords;
      if (output >= p.outputs) {
        std::memset(to, 0, kTileWords * sizeof(uint32_t));
        continue;
      }
      if (p.transposed) {
        turn_columns(p, output, begin + b * kDepth, c);
      } else {
        turn_rows(p, output, begin + b * kDepth, ahead, c);
      }
      for (int64_t k = 0; k < kTile; ++k) _mm512_store_si512(to + k * kTile, c[k]);
    }
  }
}

// 32 outputs for up to kMaxRows rows.
TWINKLE_AMX void multiply(const Bf16Product& p, int64_t o, int64_t first_row) {
  alignas(64) uint32_t panel[kMaxBlocks * kTwo * kTileWords];
  alignas(64) float sums[kMaxRows * kRow];
  const Panel transposed{panel, kTileWords, kTwo * kTileWords, kTile * 4};
  const int64_t rows = std::min(kMaxRows, p.rows - first_row);
  const int64_t all = (p.inputs + kDepth - 1) / kDepth;
  const int64_t passes = (all + kMaxBlocks - 1) / kMaxBlocks;
  const int64_t full = p.inputs / kDepth;  // blocks that do not reach beyond x
  AheadFirst ahead{reinterpret_cast<const char*>(p.w + (o + kTwo * kTile) * p.inputs)};
  for (int64_t pass = 0; pass < passes; ++pass) {
    const int64_t begin = all * pass / passes, blocks = all * (pass + 1) / passes - begin;
    fill_panel(p, o, begin * kDepth, blocks, ahead, panel);
    for (int64_t r = 0; r < rows; r += kTwo * kTile) {
      const int64_t count = std::min(rows - r, kTwo * kTile);
      if (r == 0 || count < kTwo * kTile) shape_for(count, kTile);
      // The sums of a single pass are needed only until they are rounded.
      float* const to = passes == 1 ? sums : sums + r * kRow;
      const int64_t row = first_row + r, inside = std::min(blocks, full - begin);
      if (inside > 0) {
        add_rows(p.x + row * p.x_stride + begin * kDepth, p.x_stride, count, transposed, inside,
                 begin == 0, to);
      }
      if (inside < blocks) {
        add_rows(p.x_rest + row * kDepth, kDepth, count, transposed.from(inside), 1, full == 0, to);
      }
      if (pass + 1 < passes) continue;
      for (int n = 0; n < kTwo && o + n * kTile < p.outputs; ++n) {
        finish<kTwo>(p, first_row + r, count, o + n * kTile, to + n * kTile);
      }
    }
  }
}

TWINKLE_AMX void many_rows(const Bf16Product& p, int64_t first, int64_t last) {
  for (int64_t o = first; o < last; o += kTwo * kTile) {
    for (int64_t r = 0; r < p.rows; r += kMaxRows) multiply(p, o, r);
  }
  _tile_release();
}

// One row is its own panel, of one column.
Panel panel_of(const Bf16Product& p, const uint32_t* packed) {
  if (p.rows == 1) return {reinterpret_cast<const uint32_t*>(p.x), 0, kTile, 4};
  const int64_t tiles = p.rows > kTile ? kTwo : 1;
  return {packed, kTileWords, tiles * kTileWords, kTile * 4};
}

// sums[output][row] := weights x panel, for up to 32 outputs.
template <int kColumns>
TWINKLE_AMX_INLINE void add_weights(const Bf16Product& p, int64_t o, const Panel& panel,
                                    float* sums) {
  const uint16_t* const w = p.w + o * p.inputs;
  const int64_t blocks = p.inputs / kDepth;
  AheadFirst ahead{reinterpret_cast<const char*>(w + kTwo * kTile * p.inputs)};
  if (p.outputs - o > kTile) {
    add_blocks<2, kColumns, kTwo * kTile>(w, p.inputs, panel, blocks, true, ahead, sums);
  } else {
    add_blocks<1, kColumns>(w, p.inputs, panel, blocks, true, ahead, sums);
  }
}

TWINKLE_AMX void few_rows(const Bf16Product& p, int64_t first, int64_t last) {
  const Panel panel = panel_of(p, p.packed);
  alignas(64) float sums[kRow * kRow] = {};
  alignas(64) float transposed[kTile * kTile];
  for (int64_t o = first; o < last; o += kTwo * kTile) {
    const int64_t outputs = std::min(last - o, kTwo * kTile);
    if (o == first || outputs < kTwo * kTile) shape_for(outputs, p.rows == 1 ? 1 : kTile);
    if (p.rows > kTile) {
      add_weights<2>(p, o, panel, sums);
    } else {
      add_weights<1>(p, o, panel, sums);
    }
    for (int64_t r = 0; r < p.rows; r += kTile) {
      for (int64_t n = 0; n < outputs; n += kTile) {
        __m512i c[16];
        for (int64_t j = 0; j < kTile; ++j) c[j] = _mm512_load_si512(sums + (n + j) * kRow + r);
        transpose(c);
        for (int64_t j = 0; j < kTile; ++j) _mm512_store_si512(transposed + j * kTile, c[j]);
        finish<1>(p, r, std::min(kTile, p.rows - r), o + n, transposed);
      }
    }
  }
  _tile_release();
}

}  // namespace

// Weights are read tile by tile in their own layout: no tile may reach beyond a row.
bool amx_packs(const Bf16Product& p) {
  return !p.transposed && p.inputs % kDepth == 0 && p.rows <= kTwo * kTile;
}

Bf16Loop amx_loop(const Bf16Product& p) {
  return {kTwo * kTile, amx_packs(p) ? few_rows : many_rows};
}

}  // namespace twinkle::kernels
#else
namespace twinkle::kernels {
bool amx_packs(const Bf16Product&) { return false; }
Bf16Loop amx_loop(const Bf16Product&) { return {}; }
}  // namespace twinkle::kernels
#endif
