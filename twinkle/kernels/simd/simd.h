// The inner loops, compiled once per instruction set, and the choice among them when the program
// starts to use them. Results are the same bits on one instruction set; two sets differ by
// rounding. Internal to this folder.
#pragma once
#include <c10/util/BFloat16.h>

#include <cstdint>
#include <type_traits>
#include <vector>

#include "twinkle/kernels/attention/attention_block.h"
#include "twinkle/kernels/delta/delta_block.h"
#include "twinkle/kernels/linear/linear_f32_product.h"
#include "twinkle/kernels/lora/lora_block.h"
#include "twinkle/kernels/optim/update.h"
#include "twinkle/kernels/simd/row_stats.h"

namespace twinkle::kernels {

// See rows.h, softmax_rows.h, update_rows.h, attention_tiles.h, delta_loops.h, conv_loops.h,
// linear_f32_loops.h and lora_loops.h for what each does.
template <class T>
struct Loops {
  using A = Wide<T>;
  void (*rms_scales)(const T* x, int64_t rows, int64_t width, A eps, A* scale);
  void (*rms_norm)(const T* x, const T* weight, int64_t rows, int64_t width, A eps, T* y);
  void (*rms_norm_wide)(const T* x, const A* weight, int64_t rows, int64_t width, A eps, T* y);
  void (*add)(const T* a, const T* b, int64_t count, T* y);
  void (*rms_norm_backward)(const T* grad, const T* x, const A* weight, int64_t rows, int64_t width,
                            A eps, T* dx);
  void (*rms_norm_weight)(const T* grad, const T* x, const A* scale, int64_t rows, int64_t width,
                          int64_t begin, int64_t end, A* sum);
  void (*rope)(const T* x, const float* cos, const float* sin, int64_t heads, int64_t dim,
               int64_t half, A sign, T* y);
  void (*rope_pairs)(const T* x, const float* cos, const float* sin, int64_t heads, int64_t dim,
                     int64_t half, A sign, T* y);
  void (*swiglu)(const T* gate, const T* up, int64_t count, T* y);
  void (*swiglu_backward)(const T* grad, const T* gate, const T* up, int64_t count, T* dgate,
                          T* dup);
  void (*geglu)(const T* gate, const T* up, int64_t count, T* y);
  void (*geglu_backward)(const T* grad, const T* gate, const T* up, int64_t count, T* dgate,
                         T* dup);
  void (*attention_forward)(const AttentionBlock<T>& block, A* scratch);
  void (*attention_backward)(const AttentionGradBlock<T>& block, A* scratch);
  RowStats (*softmax_stats)(const T* row, int64_t vocab, int64_t id, A temperature, bool entropy);
  A (*softmax_logprob)(const T* row, int64_t id, A temperature, const RowStats& stats);
  void (*softmax_grad)(T* row, int64_t vocab, int64_t id, A temperature, const RowGrad& grad);
  void (*softcap)(T* x, int64_t count, A cap);
  void (*softcap_grad)(T* grad, const T* capped, int64_t count, A cap);
  void (*lora_mask)(const LoraDropout& dropout, int64_t token, int64_t begin, int64_t count,
                    A* factor);
  void (*lora_shrink)(const LoraShrink<T>& rows, A* scratch);
  void (*lora_expand)(const LoraExpand<T>& rows, A* scratch);
  void (*lora_outer)(const LoraOuter<T>& columns, A* scratch);
  void (*conv_forward)(const ConvBlock<T>& block);
  void (*conv_backward)(const ConvGradBlock<T>& block);
  void (*delta_forward)(const DeltaBlock<T>& block, A* scratch);
  void (*delta_backward)(const DeltaGradBlock<T>& block, A* scratch);
  void (*sigmoid_gate)(const T* x, const T* gate, int64_t count, T* y);
  void (*sigmoid_gate_backward)(const T* grad, const T* x, const T* gate, int64_t count, T* dx,
                                T* dgate);
  void (*gated_norm)(const GatedNormRows<T>& rows);
  void (*gated_norm_backward)(const GatedNormRows<T>& rows);
  void (*gated_norm_weight)(const GatedNormRows<T>& rows, const A* scale, int64_t begin,
                            int64_t end, A* sum);
};

struct Simd {
  const char* name;
  Loops<c10::BFloat16> bf16;
  Loops<float> f32;
  Loops<double> f64;
  void (*adam)(const AdamFactors& factors, const AdamArrays& arrays, int64_t n);
  void (*sgd)(const SgdFactors& factors, const SgdArrays& arrays, int64_t n);
  double (*sum_of_squares)(const float* x, int64_t n);
  void (*linear_f32)(const RunProduct<float>& p, int64_t first, int64_t last, float* scratch);
  void (*linear_bf16)(const RunProduct<c10::BFloat16>& p, int64_t first, int64_t last,
                      float* scratch);

  template <class T>
  const Loops<T>& loops() const {
    if constexpr (std::is_same_v<T, c10::BFloat16>) return bf16;
    if constexpr (std::is_same_v<T, float>) return f32;
    if constexpr (std::is_same_v<T, double>) return f64;
  }
};

// Those that this processor can run, best first; the portable one is the last.
std::vector<const Simd*> supported_simd();

// The best of them; below AVX-512 where ATen is kept from it.
const Simd& best_simd();

// True if ATen uses AVX-512 here: the processor has it, and ATEN_CPU_CAPABILITY does not ask for
// less.
bool may_use_avx512();

}  // namespace twinkle::kernels
