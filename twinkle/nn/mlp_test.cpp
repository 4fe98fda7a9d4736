#include "twinkle/nn/mlp.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "twinkle/nn/finite_difference.h"

namespace twinkle::nn {
namespace {

TEST(Swiglu, gradients_equal_finite_differences) {
  const auto gate = leaf({3, 7}), up = leaf({3, 7});
  expect_gradients([&] { return swiglu(gate, up); }, {gate, up});
}

TEST(Swiglu, equals_silu_times_up_in_float32_and_rounds_once_in_bf16) {
  const auto gate = at::randn({5, 40}), up = at::randn({5, 40});
  EXPECT_TRUE(at::allclose(swiglu(gate, up), at::silu(gate) * up, 1e-5, 1e-6));
  const auto g = gate.to(at::kBFloat16), u = up.to(at::kBFloat16);
  const auto truth = at::silu(g.to(at::kDouble)) * u.to(at::kDouble);
  EXPECT_TRUE(at::allclose(swiglu(g, u).to(at::kDouble), truth, 1.0 / 256, 1e-30));
}

TEST(Swiglu, a_frozen_input_gets_no_gradient) {
  const auto gate = at::randn({4}), up = at::randn({4}).requires_grad_();
  swiglu(gate, up).sum().backward();
  EXPECT_FALSE(gate.grad().defined());
  EXPECT_TRUE(at::allclose(up.grad(), at::silu(gate)));
}

}  // namespace
}  // namespace twinkle::nn
