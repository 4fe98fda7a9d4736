// Where the gradient of a trained base weight is summed: never through .grad, because partial sums
// must be added sequence by sequence, in order. A frozen weight has no WeightGrad and costs
// nothing.
#pragma once
#include <ATen/core/Tensor.h>

namespace twinkle::nn {

// Owned by the trainer of the weight; must outlive the backward pass of every graph that was given
// it.
struct WeightGrad {
  at::Tensor
      sum;  // shaped like the weight; float32 (float64 for a float64 weight); undefined means zero

  // The buffer, made of zeros on first use.
  at::Tensor& buffer(const at::Tensor& weight);
};

}  // namespace twinkle::nn
