// The gated activation of llama-like MLPs: silu(gate) * up (Shazeer 2020, SwiGLU). Differentiable;
// keeps only its two inputs for the backward pass.
#pragma once
#include <ATen/core/Tensor.h>

namespace twinkle::nn {

// gate and up of one shape and dtype (bf16, float32, float64); the arithmetic is float32 (float64).
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

}  // namespace twinkle::nn
