// x sigmoid(gate), elementwise, and its derivatives: how a mixer's output is gated. x, gate and the
// results have one shape and one type, bf16, float32 or float64. Over tensors, no autograd; bf16
// and float32 are computed in float32, float64 in float64. An element's bits depend on it alone.
// CPU only. Error kInvalid of each: shapes or types that are not one, a tensor on a device.
#pragma once
#include <ATen/core/Tensor.h>

#include "twinkle/kernels/simd/simd.h"

namespace twinkle::kernels {

at::Tensor sigmoid_gate(const at::Tensor& x, const at::Tensor& gate,
                        const Simd& simd = best_simd());

struct SigmoidGateGrads {
  at::Tensor x, gate;
};
SigmoidGateGrads sigmoid_gate_backward(const at::Tensor& grad, const at::Tensor& x,
                                       const at::Tensor& gate, const Simd& simd = best_simd());

}  // namespace twinkle::kernels
