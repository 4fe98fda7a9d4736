// x sigmoid(gate) and its derivatives: how a mixer's or a shared expert's output is gated. x is
// [..., D]; the gate has its shape, or one column, [..., 1], for all of a row. All have one type,
// bf16, float32 or float64. Over tensors, no autograd; bf16 and float32 are computed in float32,
// float64 in float64. An element's bits depend on it and its gate alone, those of a column's
// gradient on its row. CPU only. Error kInvalid of each: shapes or types that do not fit, a tensor
// on a device.
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
