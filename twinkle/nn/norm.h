// Root mean square norm: y = x / sqrt(mean(x^2) + eps) * weight, over the last dim (Zhang and
// Sennrich 2019, eq. 4); a zero-centred one multiplies by 1 + weight, in the sums' type.
// Differentiable in x through autograd; the weight's gradient goes to `grad`, per sequence. T
// tokens, D width. Stateless; any thread. Error kInvalid: an x whose first dim is not the rows'
// number, and those of kernels/rms_norm.h.
#pragma once
#include <ATen/core/Tensor.h>

#include "twinkle/kernels/rms_norm.h"
#include "twinkle/nn/linear.h"
#include "twinkle/nn/rows.h"
#include "twinkle/nn/weight_grad.h"

namespace twinkle::nn {

struct RmsNorm {
  at::Tensor weight;           // [D]
  double eps = 1e-6;           // added to the mean square
  WeightGrad* grad = nullptr;  // not owned; nullptr: the weight is frozen
  bool zero_centred = false;
};

// x [T, D], or [T, heads, D] for a norm of each head; bf16, float32 or float64, the sums in float32
// (float64). A trained weight's gradient is summed over each segment of `rows` that learns.
at::Tensor rms_norm(const at::Tensor& x, const RmsNorm& norm, const Rows& rows);

// x + delta, and its rms_norm; differentiable in both.
kernels::AddedNorm add_rms_norm(const at::Tensor& x, const at::Tensor& delta, const RmsNorm& norm,
                                const Rows& rows);

}  // namespace twinkle::nn
