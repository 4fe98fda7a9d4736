// A gate on a mixer's output: x sigmoid(gate) (kernels/delta/sigmoid_gate.h). Differentiable in
// both, which are all that is kept.
#pragma once
#include <ATen/core/Tensor.h>

namespace twinkle::nn {

// x and gate of one shape and type; the result is contiguous.
at::Tensor sigmoid_gate(const at::Tensor& x, const at::Tensor& gate);

}  // namespace twinkle::nn
