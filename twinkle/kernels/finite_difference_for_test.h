// For tests: the derivatives of a function by autograd against central differences, in float64.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

namespace twinkle::kernels {

// d sum(weights * f(inputs)) / d x for one input, element by element.
template <class F>
at::Tensor finite_difference(const F& value, at::Tensor x, double step = 1e-5) {
  at::NoGradGuard guard;
  const at::Tensor slope = at::empty_like(x);
  double* at = x.data_ptr<double>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double center = at[i];
    at[i] = center + step;
    const double above = value().template item<double>();
    at[i] = center - step;
    const double below = value().template item<double>();
    at[i] = center;
    slope.data_ptr<double>()[i] = (above - below) / (2 * step);
  }
  return slope;
}

// Inputs: contiguous float64 leaves that require grad. f takes none and reads them.
template <class F>
void expect_gradients(const F& f, const std::vector<at::Tensor>& inputs) {
  const at::Tensor weights = at::randn(f().sizes(), at::kDouble);
  const auto value = [&] { return (f() * weights).sum(); };
  value().backward();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto slope = finite_difference(value, inputs[i].detach());
    const double error = (inputs[i].grad() - slope).abs().max().template item<double>();
    EXPECT_LT(error, 1e-7 * (1 + slope.abs().max().template item<double>())) << "input " << i;
  }
}

inline at::Tensor leaf(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kDouble).requires_grad_();
}

}  // namespace twinkle::kernels
