// Experts in gpt-oss's form: turned stacks, biases, clamped SwiGLU, and a router with a bias.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "twinkle/nn/experts/experts_for_test.h"

namespace twinkle::nn {
namespace {

Experts clamped_experts(at::ScalarType type, int64_t width = kWidth, int64_t inner = kInner) {
  const auto draw = [&](at::IntArrayRef sizes, int64_t inputs) {
    return (at::randn(sizes, at::kDouble) / std::sqrt(static_cast<double>(inputs))).to(type);
  };
  Experts out{.gate_up = draw({kExperts, width, 2 * inner}, width),
              .down = draw({kExperts, inner, width}, inner)};
  out.clamped = kernels::ClampedSwiglu{.limit = 0.7, .alpha = 1.7};
  out.gate_up_bias = draw({kExperts, 2 * inner}, 2);
  out.down_bias = draw({kExperts, width}, 2);
  out.cut();
  make_exact(out);
  return out;
}

Router biased_router(at::ScalarType type, int64_t width = kWidth) {
  return {.weight = at::randn({kExperts, width}).to(type),
          .options = {.top_k = 3, .normalise = true},
          .exact = type != at::kDouble,
          .bias = at::randn({kExperts}).to(type)};
}

// By torch, expert by expert, as gpt-oss's code has it.
at::Tensor clamped_by_torch(const at::Tensor& x, const Routes& routes, const Experts& of) {
  at::Tensor out = at::zeros_like(x);
  for (int64_t e = 0; e < kExperts; ++e) {
    const auto where = (routes.ids == e).nonzero();
    const at::Tensor rows = where.select(1, 0), slots = where.select(1, 1);
    const at::Tensor y = x.index_select(0, rows).matmul(of.gate_up[e]) + of.gate_up_bias[e];
    const double limit = of.clamped->limit;
    const at::Tensor g = y.slice(1, 0, y.size(1), 2).clamp_max(limit),
                     u = y.slice(1, 1, y.size(1), 2).clamp(-limit, limit);
    const at::Tensor h = (u + 1) * g * at::sigmoid(of.clamped->alpha * g);
    const at::Tensor w = routes.weights.index({rows, slots}).unsqueeze(1);
    out = out.index_add(0, rows, (h.matmul(of.down[e]) + of.down_bias[e]) * w);
  }
  return out;
}

class ClampedExperts : public ExpertsFixture {};

TEST_F(ClampedExperts, gradients_with_the_routers_equal_finite_differences) {
  const Experts some = clamped_experts(at::kDouble);
  expect_finite_differences(some, biased_router(at::kDouble), rows_);
}

TEST_F(ClampedExperts, values_and_all_weights_gradients_equal_plain_autograds) {
  const at::Tensor x = kernels::leaf({5, kWidth});
  Experts some = clamped_experts(at::kDouble);
  const Routes routes = route(x.detach(), biased_router(at::kDouble), rows_);
  const Routes fixed{routes.ids, routes.weights.detach().requires_grad_()};
  Experts plain = some;
  for (at::Tensor* w : {&plain.gate_up, &plain.down, &plain.gate_up_bias, &plain.down_bias})
    *w = w->clone().requires_grad_();
  Sums sums;
  sums.train(some);
  const at::Tensor want = clamped_by_torch(x, fixed, plain), got = experts(x, fixed, some, rows_);
  EXPECT_TRUE(at::allclose(got, want, 1e-11, 1e-13));
  const at::Tensor g = at::randn(want.sizes(), at::kDouble);
  const auto slopes = torch::autograd::grad(
      {want}, {x, fixed.weights, plain.gate_up, plain.down, plain.gate_up_bias, plain.down_bias},
      {g});
  const auto ours = torch::autograd::grad({got}, {x, fixed.weights}, {g});
  const at::Tensor mine[] = {
      ours[0], ours[1], sums.gate_up.sum, sums.down.sum, sums.gate_up_bias.sum, sums.down_bias.sum};
  for (size_t i = 0; i < slopes.size(); ++i)
    EXPECT_TRUE(at::allclose(mine[i], slopes[i], 1e-10, 1e-12)) << i;
}

TEST_F(ClampedExperts, a_routers_bias_counts_in_the_choice_and_the_weights_and_learns) {
  const at::Tensor x = kernels::leaf({5, kWidth});
  Router router = biased_router(at::kDouble);
  const at::Tensor weight = router.weight.clone().requires_grad_(),
                   bias = router.bias.clone().requires_grad_();
  const at::Tensor logits = x.matmul(weight.t()) + bias;
  const auto [values, ids] = logits.topk(3, -1);
  Sums sums;
  sums.train(router);
  const Routes got = route(x, router, rows_);
  EXPECT_TRUE(at::equal(std::get<0>(ids.sort(-1)), got.ids.to(at::kLong)));
  // gpt-oss takes the softmax of the chosen logits alone.
  const at::Tensor want = values.softmax(-1).gather(1, std::get<1>(ids.sort(-1)));
  EXPECT_TRUE(at::allclose(got.weights, want, 1e-11, 1e-13));
  const at::Tensor g = at::randn({5, 3}, at::kDouble);
  const auto slopes = torch::autograd::grad({want}, {x, weight, bias}, {g});
  const auto dx = torch::autograd::grad({got.weights}, {x}, {g});
  EXPECT_TRUE(at::allclose(dx[0], slopes[0], 1e-10, 1e-12));
  EXPECT_TRUE(at::allclose(sums.router.sum, slopes[1], 1e-10, 1e-12));
  EXPECT_TRUE(at::allclose(sums.router_bias.sum, slopes[2], 1e-10, 1e-12));
}

TEST_F(ClampedExperts, adapters_are_as_if_their_products_were_in_the_turned_weights) {
  const at::Tensor x = kernels::leaf({5, kWidth});
  Experts some = clamped_experts(at::kDouble);
  Experts plain = some;
  for (at::Tensor* w : {&plain.gate_up, &plain.down}) *w = w->clone();
  const Routes routes = route(x.detach(), biased_router(at::kDouble), rows_);
  const int64_t one = routes.ids[0][0].item<int64_t>(), other = routes.ids[0][1].item<int64_t>();
  Expert &first = some.each[static_cast<size_t>(one)],
         &second = some.each[static_cast<size_t>(other)];
  Dense gate(Dense::drawn(first.gate.weight)), up(Dense::drawn(first.up.weight)),
      down(Dense::drawn(first.down.weight)), both(Dense::drawn(second.gate_up.weight));
  first.gate.delta = &gate, first.up.delta = &up, first.down.delta = &down;
  second.gate_up.delta = &both;
  const auto turn = [](const at::Tensor& stack, int64_t which) {
    return stack.slice(1, which, stack.size(1), 2);
  };
  turn(plain.gate_up[one], 0).add_(gate.m.t()), turn(plain.gate_up[one], 1).add_(up.m.t());
  plain.gate_up[other] += both.m.t(), plain.down[one] += down.m.t();
  for (at::Tensor* w : {&plain.gate_up, &plain.down}) w->requires_grad_();
  const Routes fixed{routes.ids, routes.weights.detach()};
  const at::Tensor want = clamped_by_torch(x, fixed, plain), got = experts(x, fixed, some, rows_);
  EXPECT_TRUE(at::allclose(got, want, 1e-11, 1e-13));
  const at::Tensor g = at::randn(want.sizes(), at::kDouble);
  const auto slopes = torch::autograd::grad({want}, {x, plain.gate_up, plain.down}, {g});
  EXPECT_TRUE(at::allclose(torch::autograd::grad({got}, {x}, {g})[0], slopes[0], 1e-10, 1e-12));
  EXPECT_TRUE(at::allclose(gate.grad.t(), turn(slopes[1][one], 0), 1e-10, 1e-12));
  EXPECT_TRUE(at::allclose(up.grad.t(), turn(slopes[1][one], 1), 1e-10, 1e-12));
  EXPECT_TRUE(at::allclose(both.grad.t(), slopes[1][other], 1e-10, 1e-12));
  EXPECT_TRUE(at::allclose(down.grad.t(), slopes[2][one], 1e-10, 1e-12));
}

TEST_F(ClampedExperts, a_sequence_has_the_same_bits_alone_and_among_others) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Experts some = clamped_experts(type, 64, 40);
    expect_same_bits_alone(some, biased_router(type, 64));
  }
}

}  // namespace
}  // namespace twinkle::nn
