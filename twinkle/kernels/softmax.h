// One row of logits: log p(id), log-sum-exp and entropy, and the gradient of log p(id), in one or
// two passes. float32 arithmetic for bf16 and float32 logits, float64 for float64; a row's bits
// depend on that row alone. V vocabulary.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "twinkle/kernels/simd/row_stats.h"

namespace twinkle::kernels {

// logits [n, V] contiguous; 0 <= id < V; temperature > 0.
RowStats softmax_stats(const at::Tensor& logits, int64_t row, int32_t id, float temperature,
                       bool entropy);

// log p(id) of a row whose stats at this temperature are known: the bits that softmax_stats gives.
float softmax_logprob(const at::Tensor& logits, int64_t row, int32_t id, float temperature,
                      const RowStats& stats);

// Row := grad.grad * (onehot(id) - softmax(row / temperature)) / temperature, in place.
void softmax_grad_(at::Tensor& logits, int64_t row, int32_t id, float temperature,
                   const RowGrad& grad);

// The two of a whole chunk of logits [n, V], on the CPU or a CUDA device, where the statistics come
// back to the host. temperature [n], or empty: 1. The gradients grad[r] are d loss / d logprob.
void softmax_stats(const at::Tensor& logits, std::span<const int32_t> ids,
                   std::span<const float> temperature, bool entropy, std::span<RowStats> stats);
void softmax_grad_(at::Tensor& logits, std::span<const int32_t> ids,
                   std::span<const float> temperature, std::span<const RowStats> stats,
                   std::span<const float> grad);

}  // namespace twinkle::kernels
