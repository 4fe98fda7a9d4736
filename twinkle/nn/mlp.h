// The gated MLP of llama-like models behind its first two products: down(silu(gate) * up) (Shazeer
// 2020, SwiGLU). Differentiable; the activation is computed again in backward, so that gate and up
// are all that is kept. T tokens, F inner width, D width.
#pragma once
#include <ATen/core/Tensor.h>

#include "twinkle/nn/linear.h"

namespace twinkle::nn {

// gate and up [T, F] of the weight's dtype, down [D, F] to [T, D]. The activation's arithmetic is
// float32 (float64 for float64).
at::Tensor swiglu_linear(const at::Tensor& gate_TF, const at::Tensor& up_TF, const Linear& down,
                         const Rows& rows);

}  // namespace twinkle::nn
