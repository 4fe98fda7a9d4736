// Packed attention by the libraries that ATen has: FlashAttention 2, and for long sequences cuDNN,
// but for deterministic gradients: ATen does not ask cuDNN for an order of its sums. Internal to
// kernels/.
#pragma once
#include <tuple>

#include "twinkle/kernels/attention/attention.h"

namespace twinkle::kernels::cuda {

// bfloat16, a head_dim of at most 256 that is a multiple of 8.
bool is_for_library(const at::Tensor& q);

AttentionResult library_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  std::span<const int64_t> cu_seqlens,
                                  const AttentionOptions& options);
// dq, dk, dv
std::tuple<at::Tensor, at::Tensor, at::Tensor> library_attention_backward(
    const AttentionSaved& saved, std::span<const int64_t> cu_seqlens,
    const AttentionOptions& options);

}  // namespace twinkle::kernels::cuda
