// silu(gate) * up, elementwise, and its derivatives; silu(g) = g / (1 + exp(-g)) (Shazeer 2020, GLU
// Variants Improve Transformer). gate, up, grad and the results have one shape and one type, bf16,
// float32 or float64. Over tensors, no autograd; bf16 and float32 are computed in float32, float64
// in float64. An element's bits depend on it alone. Error kInvalid of each: shapes or types that
// are not one.
#pragma once
#include <ATen/core/Tensor.h>

#include "twinkle/kernels/simd/simd.h"

namespace twinkle::kernels {

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up, const Simd& simd = best_simd());

struct SwigluGrads {
  at::Tensor gate;  // undefined when not wanted
  at::Tensor up;
};
enum class SwigluNeeds { kGate, kUp, kBoth };

SwigluGrads swiglu_backward(const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up,
                            SwigluNeeds needs, const Simd& simd = best_simd());

// The same with gelu(g) = g (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))) / 2 in place of silu(g), on
// the CPU.
at::Tensor geglu(const at::Tensor& gate, const at::Tensor& up, const Simd& simd = best_simd());
SwigluGrads geglu_backward(const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up,
                           SwigluNeeds needs, const Simd& simd = best_simd());

}  // namespace twinkle::kernels
