// Causal attention over packed sequences: token i of a sequence sees tokens i - window < j <= i of
// the same one. Differentiable. Each row's bits depend on its own sequence alone, and equal those
// of the paged kernel that decoding uses (kernels/attention/attention.h). T tokens, H query heads,
// K key heads (H a multiple of K), d head size.
#pragma once
#include <ATen/core/Tensor.h>

#include "twinkle/kernels/attention/attention.h"
#include "twinkle/nn/rows.h"

namespace twinkle::nn {

using kernels::AttentionOptions;  // scale, window, deterministic

// q [T, H, d], k and v [T, K, d] of one dtype (bf16, float32, float64); returns [T, H, d] of it.
at::Tensor attention(const at::Tensor& q_THd, const at::Tensor& k_TKd, const at::Tensor& v_TKd,
                     const Rows& rows, const AttentionOptions& options);

}  // namespace twinkle::nn
