// Weights are transposed, a few tiles at a time, into panels in which the 16 lanes of a vector are
// outputs; then every row adds its products. Few rows: a panel is one tile of 16 outputs and 32
// inputs, used while the next lines come from memory. Many: three tiles, so that 24 sums hide the
// latency of each other and a row's inputs are loaded once for all three.
#include "twinkle/kernels/linear/linear_bf16_transpose.h"

#if defined(__x86_64__)
#include <algorithm>
#include <cstring>
#include <iterator>

namespace twinkle::kernels {
namespace {

constexpr int64_t kThinRows = 16;    // rows up to which memory, not arithmetic, is what is short
constexpr int kWide = 3;             // tiles of a wide panel
constexpr int64_t kWideDepth = 192;  // inputs of a wide panel: 18 KB, which the first cache holds
constexpr int64_t kWideRows = 512;   // rows whose sums stay in the second cache
constexpr int kGroup = 8;            // rows that add their products together
constexpr int kThinGroup = 16;       // the same of a panel of one tile

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
constexpr Group kGroups[] = {group<1, kWide>, group<2, kWide>, group<3, kWide>, group<4, kWide>,
                             group<5, kWide>, group<6, kWide>, group<7, kWide>, group<8, kWide>};
constexpr Group kThinGroups[] = {group<1, 1>,  group<2, 1>,  group<3, 1>,  group<4, 1>,
                                 group<5, 1>,  group<6, 1>,  group<7, 1>,  group<8, 1>,
                                 group<9, 1>,  group<10, 1>, group<11, 1>, group<12, 1>,
                                 group<13, 1>, group<14, 1>, group<15, 1>, group<16, 1>};

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
        kThinGroups[kThinGroup - 1](x + r * p.x_stride, p.x_stride, panel, pairs, sums + r * kTile);
      }
    }
    if (r < p.rows) {
      kThinGroups[p.rows - r - 1](x + r * p.x_stride, p.x_stride, panel, pairs, sums + r * kTile);
    }
  }
  finish<1>(p, 0, p.rows, o, sums);
}

TWINKLE_BF16 void thin_loop(const Bf16Product& p, int64_t first, int64_t last) {
  for (int64_t o = first; o < last; o += kTile) thin_tile(p, o);
}

// kWideDepth inputs from `begin` on of kWide tiles into a panel [pair][tile][16 outputs].
TWINKLE_BF16_INLINE void fill_panel(const Bf16Product& p, int64_t o, int64_t begin,
                                    AheadSecond& ahead, uint32_t* panel) {
  const int64_t end = std::min(p.inputs, begin + kWideDepth);
  for (int n = 0; n < kWide && o + n * kTile < p.outputs; ++n) {
    for (int64_t i = begin; i < end; i += kDepth) {
      __m512i c[16];
      if (p.transposed) {
        turn_columns(p, o + n * kTile, i, c);
      } else {
        turn_rows(p, o + n * kTile, i, ahead, c);
      }
      for (int64_t k = 0; k < kTile; ++k) {
        _mm512_store_si512(panel + (((i - begin) / 2 + k) * kWide + n) * kTile, c[k]);
      }
    }
  }
}

// Up to kWide tiles for kWideRows rows.
TWINKLE_BF16 void wide_tiles(const Bf16Product& p, int64_t o, int64_t first_row) {
  alignas(64) uint32_t panel[kWideDepth / 2 * kWide * kTile];
  if (p.outputs - o <= (kWide - 1) * kTile) std::memset(panel, 0, sizeof(panel));  // empty tiles
  alignas(64) float sums[kWideRows * kWide * kTile];
  const int64_t rows = std::min(kWideRows, p.rows - first_row);
  std::memset(sums, 0, static_cast<size_t>(rows * kWide * kTile) * sizeof(float));
  AheadSecond ahead{reinterpret_cast<const char*>(p.w + (o + kWide * kTile) * p.inputs)};
  for (int64_t begin = 0; begin < p.inputs; begin += kWideDepth) {
    const int64_t end = std::min(p.inputs, begin + kWideDepth);
    fill_panel(p, o, begin, ahead, panel);
    for (int64_t r = 0; r < rows; r += kGroup) {
      const int64_t count = std::min<int64_t>(kGroup, rows - r);
      kGroups[count - 1](p.x + (first_row + r) * p.x_stride + begin, p.x_stride, panel,
                         pairs_of(end - begin), sums + r * kWide * kTile);
    }
  }
  for (int n = 0; n < kWide && o + n * kTile < p.outputs; ++n) {
    finish<kWide>(p, first_row, rows, o + n * kTile, sums + n * kTile);
  }
}

TWINKLE_BF16 void wide_loop(const Bf16Product& p, int64_t first, int64_t last) {
  for (int64_t o = first; o < last; o += kWide * kTile) {
    for (int64_t r = 0; r < p.rows; r += kWideRows) wide_tiles(p, o, r);
  }
}

}  // namespace

Bf16Loop avx512_loop(const Bf16Product& p) {
  static constexpr decltype(Bf16Loop::run) kThinLoops[] = {
      few_rows_loop<1>, few_rows_loop<2>, few_rows_loop<3>, few_rows_loop<4>,
      few_rows_loop<5>, few_rows_loop<6>, few_rows_loop<7>, few_rows_loop<8>};
  if (p.transposed || p.rows > kThinRows) return {kWide * kTile, wide_loop};
  if (p.rows > std::ssize(kThinLoops)) return {kTile, thin_loop};
  return {kTile, kThinLoops[std::max<int64_t>(1, p.rows) - 1]};
}

}  // namespace twinkle::kernels
#else
namespace twinkle::kernels {
Bf16Loop avx512_loop(const Bf16Product&) { return {}; }
}  // namespace twinkle::kernels
#endif
