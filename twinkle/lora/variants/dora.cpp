#include "twinkle/lora/variants/dora.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace twinkle::lora {

at::Tensor row_norms(const at::Tensor& weight, const kernels::LoraFactors& f) {
  constexpr int64_t kRows = 512;  // at a time, so that no second weight is made
  const int64_t outputs = weight.size(0);
  at::Tensor out = at::empty({outputs}, f.a.options());
  for (int64_t begin = 0; begin < outputs; begin += kRows) {
    const int64_t end = std::min(outputs, begin + kRows);
    const at::Tensor sum = weight.slice(0, begin, end).to(f.a.scalar_type()) +
                           f.b.slice(0, begin, end).mm(f.a).mul(f.scale);
    out.slice(0, begin, end).copy_(at::linalg_vector_norm(sum, 2, {1}));
  }
  return out;
}

at::Tensor dora_forward(const at::Tensor& y, const at::Tensor& bias, const Dora& dora) {
  const at::Tensor plain = bias.defined() ? y - bias : y.clone();
  const at::Tensor scaled = plain * (dora.magnitude / dora.norms);
  y.copy_(bias.defined() ? scaled + bias : scaled);
  return plain;
}

void dora_backward(const at::Tensor& dy, const at::Tensor& plain, const Dora& dora,
                   const at::Tensor& grad) {
  if (grad.defined()) grad.add_((dy * plain.to(grad.scalar_type())).sum(0) / dora.norms);
  dy.copy_(dy * (dora.magnitude / dora.norms));
}

}  // namespace twinkle::lora
