#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstring>

#include "twinkle/base/error.h"
#include "twinkle/kernels/gemv.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace twinkle::kernels {
namespace {

constexpr int64_t kTile = 16;     // outputs that are summed side by side
constexpr int64_t kMostRows = 8;  // rows of x that share one pass over a tile

struct Problem {
  const uint16_t* x;     // [rows][inputs]
  const uint16_t* w;     // [outputs][inputs]
  const uint16_t* bias;  // [outputs] or null
  uint16_t* y;           // [rows][outputs]
  int64_t rows, outputs, inputs, block;
};

inline float widen(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float out;
  std::memcpy(&out, &word, 4);
  return out;
}

inline uint16_t narrow(float x) { return c10::detail::round_to_nearest_even(x); }

using Work = void (*)(const Problem& p, int64_t first, int64_t last);

// Outputs [first, last).
void portable(const Problem& p, int64_t first, int64_t last) {
  for (int64_t r = 0; r < p.rows; ++r) {
    const uint16_t* x = p.x + r * p.inputs;
    for (int64_t o = first; o < last; ++o) {
      const uint16_t* w = p.w + o * p.inputs;
      float total = 0;
      for (int64_t begin = 0; begin < p.inputs; begin += p.block) {
        const int64_t end = std::min(p.inputs, begin + p.block);
        float sum = 0;
        for (int64_t i = begin; i < end; i += 2) {
          if (i + 1 < end) sum = __builtin_fmaf(widen(x[i + 1]), widen(w[i + 1]), sum);
          sum = __builtin_fmaf(widen(x[i]), widen(w[i]), sum);
        }
        total = begin == 0 ? sum : total + sum;
      }
      if (p.bias) total += widen(p.bias[o]);
      p.y[r * p.outputs + o] = narrow(total);
    }
  }
}

#if defined(__x86_64__)
#define TWINKLE_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#define TWINKLE_BF16_INLINE TWINKLE_BF16 inline __attribute__((always_inline))

// 16 rows of 16 words to 16 columns: quarters by words, then by pairs of words, then by 128 bits.
TWINKLE_BF16_INLINE void transpose(__m512i* a) {
  constexpr __mmask16 kWords = 0xffff;  // all of them: GCC 12 warns of the unmasked intrinsics
  constexpr __mmask8 kLongs = 0xff;
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

// Up to 16 outputs from `o` on, kRows rows of x from `r` on. The next tile, which lies right behind
// this one, is fetched ahead line by line.
template <int kRows>
TWINKLE_BF16 void tile(const Problem& p, int64_t r, int64_t o, int64_t count) {
  const uint16_t* x = p.x + r * p.inputs;
  const uint16_t* w = p.w + o * p.inputs;
  const char* ahead = reinterpret_cast<const char*>(w + kTile * p.inputs);
  __m512 total[kRows] = {};
  for (int64_t begin = 0; begin < p.inputs; begin += p.block) {
    const int64_t end = std::min(p.inputs, begin + p.block);
    __m512 sum[kRows];
    for (int j = 0; j < kRows; ++j) sum[j] = _mm512_setzero_ps();
    for (int64_t i = begin; i < end; i += 32) {
      const int64_t left = end - i;
      const __mmask32 mask = left >= 32 ? ~0u : (1u << left) - 1;
      __m512i c[16];
      for (int64_t n = 0; n < kTile; ++n) {
        c[n] = n < count ? _mm512_maskz_loadu_epi16(mask, w + n * p.inputs + i)
                         : _mm512_setzero_si512();
        _mm_prefetch(ahead, _MM_HINT_T0);
        ahead += 64;
      }
      transpose(c);
      alignas(64) uint32_t pairs[kRows][16];
      for (int j = 0; j < kRows; ++j) {
        _mm512_store_si512(pairs[j], _mm512_maskz_loadu_epi16(mask, x + j * p.inputs + i));
      }
      for (int k = 0; k < 16; ++k) {
        for (int j = 0; j < kRows; ++j) {
          const __m512i pair = _mm512_set1_epi32(static_cast<int>(pairs[j][k]));
          sum[j] = _mm512_dpbf16_ps(sum[j], (__m512bh)c[k], (__m512bh)pair);
        }
      }
    }
    for (int j = 0; j < kRows; ++j) total[j] = begin == 0 ? sum[j] : total[j] + sum[j];
  }
  const auto outputs = static_cast<__mmask16>((1u << count) - 1);
  if (p.bias) {
    const __m256i half = _mm256_maskz_loadu_epi16(outputs, p.bias + o);
    const __m512 bias =
        (__m512)(_mm512_maskz_slli_epi32(0xffff, _mm512_maskz_cvtepu16_epi32(0xffff, half), 16));
    for (int j = 0; j < kRows; ++j) total[j] += bias;
  }
  for (int j = 0; j < kRows; ++j) {
    _mm256_mask_storeu_epi16(p.y + (r + j) * p.outputs + o, outputs,
                             (__m256i)_mm512_cvtneps_pbh(total[j]));
  }
}

TWINKLE_BF16 void fast(const Problem& p, int64_t first, int64_t last) {
  using Tile = void (*)(const Problem&, int64_t, int64_t, int64_t);
  static constexpr Tile kTiles[] = {tile<1>, tile<2>, tile<3>, tile<4>,
                                    tile<5>, tile<6>, tile<7>, tile<8>};
  for (int64_t o = first; o < last; o += kTile) {
    for (int64_t r = 0; r < p.rows; r += kMostRows) {
      kTiles[std::min(kMostRows, p.rows - r) - 1](p, r, o, std::min(kTile, last - o));
    }
  }
}

Work best_work() { return thin_linear_is_fast() ? fast : portable; }
#else
Work best_work() { return portable; }
#endif

void check(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t block) {
  require(x.dim() == 2 && weight.dim() == 2 && x.size(1) == weight.size(1) &&
              x.scalar_type() == at::kBFloat16 && weight.scalar_type() == at::kBFloat16 &&
              x.is_contiguous() && weight.is_contiguous(),
          Code::kInvalid, "kernels: thin_linear's x is ", x.scalar_type(), " ", x.sizes(),
          ", its weight ", weight.scalar_type(), " ", weight.sizes(),
          "; they must be contiguous bfloat16 [m, I] and [O, I]");
  require(!bias.defined() || (bias.sizes() == weight.sizes().slice(0, 1) && bias.is_contiguous() &&
                              bias.scalar_type() == at::kBFloat16),
          Code::kInvalid, "kernels: thin_linear's bias is ", bias.scalar_type(), " ", bias.sizes(),
          ", it must be contiguous bfloat16 [", weight.size(0), "]");
  require(block >= 2 && block % 2 == 0, Code::kInvalid, "kernels: thin_linear's block is ", block,
          ", it must be even and at least 2");
}

}  // namespace

bool thin_linear_is_fast() {
#if defined(__x86_64__)
  static const bool fast = __builtin_cpu_supports("avx512bf16") != 0 &&
                           __builtin_cpu_supports("avx512bw") != 0 &&
                           __builtin_cpu_supports("avx512vl") != 0;
  return fast;
#else
  return false;
#endif
}

at::Tensor thin_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       int64_t block, GemvPath path) {
  check(x, weight, bias, block);
  const at::Tensor y = at::empty({x.size(0), weight.size(0)}, x.options());
  const Problem p{
      reinterpret_cast<const uint16_t*>(x.const_data_ptr()),
      reinterpret_cast<const uint16_t*>(weight.const_data_ptr()),
      bias.defined() ? reinterpret_cast<const uint16_t*>(bias.const_data_ptr()) : nullptr,
      reinterpret_cast<uint16_t*>(y.mutable_data_ptr()),
      x.size(0),
      weight.size(0),
      weight.size(1),
      block};
  const Work work = path == GemvPath::kBest ? best_work() : portable;
  const int64_t tiles = (p.outputs + kTile - 1) / kTile;
  const int64_t grain = std::max<int64_t>(1, 65536 / (p.inputs * kTile));
  at::parallel_for(0, tiles, grain, [&](int64_t begin, int64_t end) {
    work(p, begin * kTile, std::min(p.outputs, end * kTile));
  });
  return y;
}

}  // namespace twinkle::kernels
