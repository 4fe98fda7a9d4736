#include "twinkle/nn/mlp.h"

#include <ATen/ATen.h>

namespace twinkle::nn {

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  const auto wide = gate.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return (at::silu(gate.to(wide)) * up.to(wide)).to(gate.scalar_type());
}

}  // namespace twinkle::nn
