// One row of logits: log p(id), log-sum-exp and entropy, and their gradients, in one or two passes;
// and the softcap of logits.
// float32 arithmetic for bf16 and float32 logits, float64 for float64; a row's bits depend on that
// row alone. V vocabulary.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "twinkle/kernels/simd/row_stats.h"
#include "twinkle/kernels/simd/simd.h"

namespace twinkle::kernels {

// logits [n, V] contiguous; 0 <= id < V; temperature > 0. Error kInvalid, here and below: logits of
// another type than the three.
RowStats softmax_stats(const at::Tensor& logits, int64_t row, int32_t id, float temperature,
                       bool entropy);

// log p(id) of a row whose stats at this temperature are known: the bits that softmax_stats gives.
double softmax_logprob(const at::Tensor& logits, int64_t row, int32_t id, float temperature,
                       const RowStats& stats);

// Row := d loss / d row, in place, with p = softmax(row / temperature) and H its entropy:
// (grad.grad * (onehot(id) - p) - grad.entropy_grad * p * (log p + H)) / temperature.
void softmax_grad_(at::Tensor& logits, int64_t row, int32_t id, float temperature,
                   const RowGrad& grad);

// The two of a whole chunk of logits [n, V], on the CPU or a CUDA device, where the statistics come
// back to the host. temperature [n], or empty: 1. The gradients grad[r] are d loss / d logprob,
// entropy_grad[r] d loss / d entropy (empty: 0), which takes stats with the entropy.
void softmax_stats(const at::Tensor& logits, std::span<const int32_t> ids,
                   std::span<const float> temperature, bool entropy, std::span<RowStats> stats);
void softmax_grad_(at::Tensor& logits, std::span<const int32_t> ids,
                   std::span<const float> temperature, std::span<const RowStats> stats,
                   std::span<const float> grad, std::span<const float> entropy_grad = {});

// In place, each element by itself: logits := cap tanh(logits / cap) (Gemma 2, section 2); and
// given what came of them, grad := grad (1 - (capped / cap)^2). Contiguous, of one shape and type,
// on the CPU.
void softcap_(at::Tensor& logits, double cap, const Simd& simd = best_simd());
void softcap_grad_(at::Tensor& grad, const at::Tensor& capped, double cap,
                   const Simd& simd = best_simd());

}  // namespace twinkle::kernels
