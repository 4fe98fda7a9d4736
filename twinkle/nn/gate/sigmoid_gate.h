// A gate on a mixer's or a shared expert's output: x sigmoid(gate) (kernels/sigmoid_gate.h).
// Differentiable in both, which are all that is kept.
#pragma once
#include <ATen/core/Tensor.h>

namespace twinkle::nn {

// x [..., D] and a gate of its type, of its shape or [..., 1]; the result is contiguous.
at::Tensor sigmoid_gate(const at::Tensor& x, const at::Tensor& gate);

}  // namespace twinkle::nn
