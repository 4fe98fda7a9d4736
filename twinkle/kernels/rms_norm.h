// Root mean square norm (Zhang and Sennrich 2019) over the last dim and its derivatives. Functions
// over tensors, no autograd. bf16 and float32 are summed in float32, float64 in float64; a row's
// bits depend on that row alone, and on no thread count. Error kInvalid of each: shapes that do not
// fit, another type.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "twinkle/kernels/simd/simd.h"

namespace twinkle::kernels {

// x / sqrt(mean(x^2) + eps) * weight: x [..., D], weight [D] of any float type.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps,
                    const Simd& simd = best_simd());

// x + delta, both [..., D] and contiguous or not, and its rms_norm: bit for bit the two one after
// the other, in one pass over memory.
struct AddedNorm {
  at::Tensor sum, normed;
};
AddedNorm add_rms_norm(const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight,
                       double eps, const Simd& simd = best_simd());

// The gradient of x, of x's type.
at::Tensor rms_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                             double eps, const Simd& simd = best_simd());

// Adds the weight's gradient to sum [D] (float32; float64 for a float64 x): one partial sum per
// sequence, over its rows from zero, added in order. x is [T, ..., D], cu_seqlens [S + 1] counts
// along T.
void rms_norm_weight_grad(const at::Tensor& grad, const at::Tensor& x, double eps,
                          std::span<const int64_t> cu_seqlens, at::Tensor& sum,
                          const Simd& simd = best_simd());

}  // namespace twinkle::kernels
