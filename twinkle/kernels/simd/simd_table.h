// Fills the table of one instruction set; included last by each simd_*.cpp file.
#pragma once
#include "twinkle/kernels/attention/attention_backward_tiles.h"
#include "twinkle/kernels/attention/attention_tiles.h"
#include "twinkle/kernels/delta/conv_loops.h"
#include "twinkle/kernels/delta/delta_backward_loops.h"
#include "twinkle/kernels/linear/linear_f32_loops.h"
#include "twinkle/kernels/lora/lora_loops.h"
#include "twinkle/kernels/optim/update_rows.h"
#include "twinkle/kernels/simd/rows.h"
#include "twinkle/kernels/simd/softmax_rows.h"

namespace twinkle::kernels::TWINKLE_ISA {

template <class T>
constexpr Loops<T> loops() {
  using A = Wide<T>;
  return {.rms_scales = rms_scales<T, A>,
          .rms_norm = rms_norm<T, A, T>,
          .rms_norm_wide = rms_norm<T, A, A>,
          .add = add<T, A>,
          .rms_norm_backward = rms_norm_backward<T, A>,
          .rms_norm_weight = rms_norm_weight<T, A>,
          .rope = rope<T, A>,
          .rope_pairs = rope_pairs<T, A>,
          .swiglu = swiglu<T, A>,
          .swiglu_backward = swiglu_backward<T, A>,
          .geglu = geglu<T, A>,
          .geglu_backward = geglu_backward<T, A>,
          .attention_forward = attention_forward<T, A>,
          .attention_backward = attention_backward<T, A>,
          .softmax_stats = softmax_stats<T, A>,
          .softmax_logprob = softmax_logprob<T, A>,
          .softmax_grad = softmax_grad<T, A>,
          .softcap = softcap<T, A>,
          .softcap_grad = softcap_grad<T, A>,
          .lora_mask = lora_mask<A>,
          .lora_shrink = lora_shrink<T, A>,
          .lora_expand = lora_expand<T, A>,
          .lora_outer = lora_outer<T, A>,
          .conv_forward = conv_forward<T, A>,
          .conv_backward = conv_backward<T, A>,
          .delta_forward = delta_forward<T, A>,
          .delta_backward = delta_backward<T, A>,
          .sigmoid_gate = sigmoid_gate<T, A>,
          .sigmoid_gate_backward = sigmoid_gate_backward<T, A>,
          .gated_norm = gated_norm<T, A>,
          .gated_norm_backward = gated_norm_backward<T, A>,
          .gated_norm_weight = gated_norm_weight<T, A>};
}

#define TWINKLE_NAME_OF(x) #x
#define TWINKLE_NAME(x) TWINKLE_NAME_OF(x)

const Simd& simd() {
  static constexpr Simd table{TWINKLE_NAME(TWINKLE_ISA),
                              loops<c10::BFloat16>(),
                              loops<float>(),
                              loops<double>(),
                              adam,
                              sgd,
                              sum_of_squares,
                              linear_runs<float>,
                              linear_runs<c10::BFloat16>};
  return table;
}

}  // namespace twinkle::kernels::TWINKLE_ISA
