// The gated MLP of llama-like models behind its first two products: down(silu(gate) * up) (Shazeer
// 2020, SwiGLU), or with gelu in place of silu (GEGLU). Differentiable; the activation is computed
// again in backward, so that gate and up are all that is kept. T tokens, F inner width, D width.
#pragma once
#include <ATen/core/Tensor.h>

#include "twinkle/nn/linear.h"

namespace twinkle::nn {

// The activation of the gate.
enum class Activation { kSilu, kGeluTanh };  // the second by its tanh form, on the CPU

// gate and up [T, F] of the weight's dtype, down [D, F] to [T, D]. The activation's arithmetic is
// float32 (float64 for float64).
at::Tensor swiglu_linear(const at::Tensor& gate_TF, const at::Tensor& up_TF, const Linear& down,
                         const Rows& rows, Activation activation = Activation::kSilu);

}  // namespace twinkle::nn
