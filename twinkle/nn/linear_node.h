// A linear inside an autograd function of nn/: the function's context keeps what backward needs in
// addition to the input, which the function keeps itself or computes again. Once per context.
#pragma once
#include <torch/csrc/autograd/custom_function.h>

#include "twinkle/nn/linear.h"

namespace twinkle::nn {

// As linear(); nothing is differentiated by autograd.
at::Tensor linear_forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x_TI,
                          const Linear& w, const Rows& rows);

// d loss / d x, undefined unless it is needed; adds to the gradient buffers. `x` is read only when
// the forward's Linear needs_input().
at::Tensor linear_backward(torch::autograd::AutogradContext* ctx, const at::Tensor& dy_TO,
                           const at::Tensor& x_TI, bool needs_dx);

}  // namespace twinkle::nn
