#include "twinkle/nn/weight_grad.h"

#include <ATen/ops/zeros.h>

namespace twinkle::nn {

at::Tensor& WeightGrad::buffer(const at::Tensor& weight) {
  if (!sum.defined()) {
    const auto dtype = weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    sum = at::zeros(weight.sizes(), weight.options().dtype(dtype));
  }
  return sum;
}

}  // namespace twinkle::nn
