// DoRA (Liu et al. 2024): y = m / |W + s B A| (W + s B A) x + bias, with a magnitude m of each
// output row, which learns. The row norms are constants to the gradient (section 4.3 there, as in
// peft). A row's result depends on that row alone. L rows of one sequence, O outputs.
#pragma once
#include <ATen/core/Tensor.h>

#include "twinkle/kernels/lora/lora.h"

namespace twinkle::lora {

// [O]: |W + s B A| of each row, in the type of the factors.
at::Tensor row_norms(const at::Tensor& weight_OI, const kernels::LoraFactors& f);

struct Dora {
  at::Tensor magnitude, norms;  // [O]
};

// y_LO := m / norms * (y - bias) + bias. Returns y - bias, for backward. `bias`: [O] or undefined.
at::Tensor dora_forward(const at::Tensor& y_LO, const at::Tensor& bias, const Dora& dora);

// dy_LO := the gradient of what dora_forward() got, of that of what it left; and, unless it is
// undefined, grad += that of the magnitude. `plain`: what it returned.
void dora_backward(const at::Tensor& dy_LO, const at::Tensor& plain, const Dora& dora,
                   const at::Tensor& grad);

}  // namespace twinkle::lora
