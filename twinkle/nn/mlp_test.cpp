#include "twinkle/nn/mlp.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "twinkle/kernels/finite_difference_for_test.h"
#include "twinkle/nn/rows_for_test.h"

namespace twinkle::nn {
namespace {

// Keeps what the linear hands its adapter as input in forward and in backward.
struct Witness : Delta {
  at::Tensor forward_x, backward_x;
  std::vector<at::Tensor> forward(const at::Tensor& x, const Rows&, at::Tensor&) override {
    forward_x = x.clone();
    return {};
  }
  void backward(const at::Tensor&, const at::Tensor& x, const std::vector<at::Tensor>&, const Rows&,
                at::Tensor&) override {
    backward_x = x.clone();
  }
};

class SwigluLinearTest : public testing::Test {
 protected:
  at::Tensor run(const at::Tensor& gate, const at::Tensor& up, const Linear& down) const {
    return swiglu_linear(gate, up, down, rows_);
  }
  const Rows rows_ = rows_of({2, 3}, {-1, -1}, {0, 0}, {1, 1});
};

TEST_F(SwigluLinearTest, gradients_equal_finite_differences) {
  const auto gate = kernels::leaf({5, 7}), up = kernels::leaf({5, 7});
  const Linear down{at::randn({4, 7}, at::kDouble)};
  kernels::expect_gradients([&] { return run(gate, up, down); }, {gate, up});
}

TEST_F(SwigluLinearTest, with_gelu_gradients_equal_finite_differences_and_values_atens) {
  const auto gate = kernels::leaf({5, 7}), up = kernels::leaf({5, 7});
  const at::Tensor w = at::randn({4, 7}, at::kDouble), g = at::randn({5, 4}, at::kDouble);
  const auto with_gelu = [&](const Linear& down) {
    return swiglu_linear(gate, up, down, rows_, Activation::kGeluTanh);
  };
  kernels::expect_gradients([&] { return with_gelu({w}); }, {gate, up});
  const at::Tensor hidden = at::gelu(gate.detach(), "tanh") * up.detach();
  EXPECT_TRUE(at::allclose(with_gelu({w}).detach(), hidden.matmul(w.t()), 1e-12, 1e-12));
  WeightGrad sum;
  with_gelu({w, {}, &sum}).backward(g);
  EXPECT_TRUE(at::allclose(sum.sum, g.t().matmul(hidden), 1e-10, 1e-12));
}

TEST_F(SwigluLinearTest, a_trained_weights_gradient_equals_plain_autograds) {
  const auto gate = kernels::leaf({5, 7}), up = kernels::leaf({5, 7}), w = kernels::leaf({4, 7}),
             g = kernels::leaf({5, 4});
  WeightGrad sum;
  run(gate, up, {w.detach(), {}, &sum}).backward(g.detach());
  const auto want = torch::autograd::grad({(at::silu(gate) * up).matmul(w.t())}, {w}, {g});
  EXPECT_TRUE(at::allclose(sum.sum, want[0], 1e-10, 1e-12));
}

TEST_F(SwigluLinearTest, equals_silu_times_up_in_float32_and_rounds_the_activation_once_in_bf16) {
  const at::Tensor eye = at::eye(40), gate = at::randn({5, 40}), up = at::randn({5, 40});
  EXPECT_TRUE(at::allclose(run(gate, up, {eye}), at::silu(gate) * up, 1e-5, 1e-6));
  const auto g = gate.to(at::kBFloat16), u = up.to(at::kBFloat16);
  const auto truth = at::silu(g.to(at::kDouble)) * u.to(at::kDouble);
  EXPECT_TRUE(
      at::allclose(run(g, u, {eye.to(at::kBFloat16)}).to(at::kDouble), truth, 1.0 / 256, 1e-30));
}

TEST_F(SwigluLinearTest, the_activation_of_backward_has_the_bits_of_forward) {
  const auto gate = at::randn({5, 40}).to(at::kBFloat16).requires_grad_();
  const auto up = at::randn({5, 40}).to(at::kBFloat16).requires_grad_();
  Witness witness;
  run(gate, up, {at::ones({3, 40}, at::kBFloat16), {}, nullptr, nullptr, &witness})
      .sum()
      .backward();
  EXPECT_EQ(witness.forward_x.sizes(), gate.sizes());
  EXPECT_TRUE(at::equal(witness.backward_x, witness.forward_x));
}

TEST_F(SwigluLinearTest, a_frozen_input_gets_no_gradient) {
  const auto gate = at::randn({5, 4}), up = at::randn({5, 4}).requires_grad_();
  run(gate, up, {at::eye(4)}).sum().backward();
  EXPECT_FALSE(gate.grad().defined());
  EXPECT_TRUE(at::allclose(up.grad(), at::silu(gate)));
}

}  // namespace
}  // namespace twinkle::nn
