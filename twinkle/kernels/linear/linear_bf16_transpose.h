// Pieces of the fast loops of linear_bf16: weights transposed so that the 16 lanes of a vector are
// outputs, and sums rounded to bf16. Internal to this folder.
#pragma once
#include "twinkle/kernels/linear/linear_bf16_product.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TWINKLE_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#define TWINKLE_BF16_INLINE TWINKLE_BF16 inline __attribute__((always_inline))

namespace twinkle::kernels {

inline constexpr int64_t kTile = 16;   // outputs: the lanes of a vector
inline constexpr int64_t kDepth = 32;  // inputs transposed at a time

inline constexpr __mmask16 kWords = 0xffff;  // all of them: GCC 12 warns of the unmasked intrinsics
inline constexpr __mmask8 kLongs = 0xff;

// 16 rows of 16 words to 16 columns: quarters by words, then by pairs of words, then by 128 bits.
TWINKLE_BF16_INLINE void transpose(__m512i* a) {
  __m512i b[16];
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_maskz_unpacklo_epi32(kWords, a[i], a[i + 1]);
    b[i + 1] = _mm512_maskz_unpackhi_epi32(kWords, a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_maskz_unpacklo_epi64(kLongs, b[i], b[i + 2]);
    a[i + 1] = _mm512_maskz_unpackhi_epi64(kLongs, b[i], b[i + 2]);
    a[i + 2] = _mm512_maskz_unpacklo_epi64(kLongs, b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_maskz_unpackhi_epi64(kLongs, b[i + 1], b[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    b[i] = _mm512_maskz_shuffle_i32x4(kWords, a[i], a[i + 4], 0x88);
    b[i + 4] = _mm512_maskz_shuffle_i32x4(kWords, a[i], a[i + 4], 0xdd);
    b[i + 8] = _mm512_maskz_shuffle_i32x4(kWords, a[i + 8], a[i + 12], 0x88);
    b[i + 12] = _mm512_maskz_shuffle_i32x4(kWords, a[i + 8], a[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    a[i] = _mm512_maskz_shuffle_i32x4(kWords, b[i], b[i + 8], 0x88);
    a[i + 8] = _mm512_maskz_shuffle_i32x4(kWords, b[i], b[i + 8], 0xdd);
    a[i + 4] = _mm512_maskz_shuffle_i32x4(kWords, b[i + 4], b[i + 12], 0x88);
    a[i + 12] = _mm512_maskz_shuffle_i32x4(kWords, b[i + 4], b[i + 12], 0xdd);
  }
}

// The weights to prefetch; `ahead` moves on line by line, into the first cache or the second. A
// tile of 16 outputs fills most of a first cache of 32 KB: weights fetched into it would evict the
// ones that are being read.
template <_mm_hint kInto>
struct Ahead {
  const char* line;
  TWINKLE_BF16_INLINE void fetch() {
    _mm_prefetch(line, kInto);
    line += 64;
  }
};
using AheadFirst = Ahead<_MM_HINT_T0>;
using AheadSecond = Ahead<_MM_HINT_T1>;

inline int64_t pairs_of(int64_t inputs) { return (inputs + 1) / 2; }

// c[k] := outputs o .. o + 15 of the pair of inputs i + 2k, i + 2k + 1; zero beyond the weight.
template <_mm_hint kInto>
TWINKLE_BF16_INLINE void turn_rows(const Bf16Product& p, int64_t o, int64_t i, Ahead<kInto>& ahead,
                                   __m512i* c) {
  const uint16_t* w = p.w + o * p.inputs + i;
  const int64_t left = p.inputs - i, count = p.outputs - o;
  const __mmask32 mask = left >= kDepth ? ~0u : (1u << left) - 1;
  for (int64_t n = 0; n < kTile; ++n) {
    c[n] = n < count ? _mm512_maskz_loadu_epi16(mask, w + n * p.inputs) : _mm512_setzero_si512();
    ahead.fetch();
  }
  transpose(c);
}

// The permutation of two_lines: the words of both lines in turn.
TWINKLE_BF16_INLINE __m512i in_turn_of_two() {
  alignas(64) static constexpr uint16_t kInTurn[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                       37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                       11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  return _mm512_load_si512(kInTurn);
}

// 16 outputs of a pair of inputs of a transposed weight, whose outputs are contiguous.
TWINKLE_BF16_INLINE __m512i two_lines(const uint16_t* first, const uint16_t* second,
                                      __m512i in_turn, __mmask16 low = kWords,
                                      __mmask16 high = kWords) {
  return _mm512_permutex2var_epi16(_mm512_castsi256_si512(_mm256_maskz_loadu_epi16(low, first)),
                                   in_turn,
                                   _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(high, second)));
}

// As turn_rows, for a transposed weight.
TWINKLE_BF16_INLINE void turn_columns(const Bf16Product& p, int64_t o, int64_t i, __m512i* c) {
  const __m512i in_turn = in_turn_of_two();
  const uint16_t* w = p.w + i * p.outputs + o;
  const int64_t left = p.inputs - i, count = p.outputs - o;
  const auto mask = static_cast<__mmask16>(count >= kTile ? 0xffff : (1u << count) - 1);
  for (int64_t k = 0; k < kTile; ++k, w += 2 * p.outputs) {
    const __mmask16 low = 2 * k < left ? mask : 0, high = 2 * k + 1 < left ? mask : 0;
    c[k] = two_lines(w, w + p.outputs, in_turn, low, high);
  }
}

// y[r][o ...] = sums[r] + bias for `rows` rows, sums kTiles tiles apart.
template <int kTiles>
TWINKLE_BF16_INLINE void finish(const Bf16Product& p, int64_t first_row, int64_t rows, int64_t o,
                                const float* sums) {
  const int64_t count = p.outputs - o;
  const auto outputs = static_cast<__mmask16>(count >= kTile ? 0xffff : (1u << count) - 1);
  __m512 bias = _mm512_setzero_ps();
  if (p.bias) {
    const __m256i half = _mm256_maskz_loadu_epi16(outputs, p.bias + o);
    bias = (__m512)(_mm512_maskz_slli_epi32(kWords, _mm512_maskz_cvtepu16_epi32(kWords, half), 16));
  }
  for (int64_t r = 0; r < rows; ++r) {
    __m512 sum = _mm512_load_ps(sums + r * kTiles * kTile);
    if (p.bias) sum += bias;
    _mm256_mask_storeu_epi16(p.y + (first_row + r) * p.outputs + o, outputs,
                             (__m256i)_mm512_cvtneps_pbh(sum));
  }
}

}  // namespace twinkle::kernels
#endif
