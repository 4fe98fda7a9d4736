#include "twinkle/nn/experts/experts.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "twinkle/nn/experts/experts_for_test.h"

namespace twinkle::nn {
namespace {

Experts some_experts(at::ScalarType type, int64_t width = kWidth, int64_t inner = kInner) {
  const double size = 1 / std::sqrt(static_cast<double>(width));
  Experts out{.gate_up = (at::randn({kExperts, 2 * inner, width}) * size).to(type),
              .down = (at::randn({kExperts, width, inner}) * size).to(type)};
  out.cut();
  make_exact(out);
  return out;
}

Router some_router(at::ScalarType type, int64_t width = kWidth) {
  return {.weight = at::randn({kExperts, width}).to(type),
          .options = {.top_k = 3, .normalise = true},
          .exact = type != at::kDouble};
}

// By torch, expert by expert; the stacks may require grad.
at::Tensor by_torch(const at::Tensor& x, const Routes& routes, const at::Tensor& gate_up,
                    const at::Tensor& down) {
  at::Tensor out = at::zeros_like(x);
  for (int64_t e = 0; e < gate_up.size(0); ++e) {
    const auto where = (routes.ids == e).nonzero();
    const at::Tensor rows = where.select(1, 0), slots = where.select(1, 1);
    const auto both = x.index_select(0, rows).matmul(gate_up[e].t()).chunk(2, -1);
    const at::Tensor w = routes.weights.index({rows, slots}).unsqueeze(1);
    out = out.index_add(0, rows, (at::silu(both[0]) * both[1]).matmul(down[e].t()) * w);
  }
  return out;
}

class ExpertsTest : public ExpertsFixture {};

TEST_F(ExpertsTest, gradients_with_the_routers_equal_finite_differences) {
  const Experts some = some_experts(at::kDouble);
  expect_finite_differences(some, some_router(at::kDouble), rows_);
}

TEST_F(ExpertsTest, values_and_the_stacks_gradients_equal_plain_autograds) {
  const at::Tensor x = kernels::leaf({5, kWidth});
  WeightGrad gate_up_sum, down_sum;
  Experts some = some_experts(at::kDouble);
  some.gate_up_grad = &gate_up_sum, some.down_grad = &down_sum;
  const Routes routes = route(x.detach(), some_router(at::kDouble), rows_);
  const Routes fixed{routes.ids, routes.weights.detach().requires_grad_()};
  const at::Tensor gate_up = some.gate_up.clone().requires_grad_(),
                   down = some.down.clone().requires_grad_();
  const at::Tensor want = by_torch(x, fixed, gate_up, down);
  const at::Tensor got = experts(x, fixed, some, rows_);
  EXPECT_TRUE(at::allclose(got, want, 1e-11, 1e-13));
  const at::Tensor g = at::randn(want.sizes(), at::kDouble);
  const auto slopes = torch::autograd::grad({want}, {x, fixed.weights, gate_up, down}, {g});
  const auto ours = torch::autograd::grad({got}, {x, fixed.weights}, {g});
  EXPECT_TRUE(at::allclose(ours[0], slopes[0], 1e-10, 1e-12));
  EXPECT_TRUE(at::allclose(ours[1], slopes[1], 1e-10, 1e-12));
  EXPECT_TRUE(at::allclose(gate_up_sum.sum, slopes[2], 1e-10, 1e-12));
  EXPECT_TRUE(at::allclose(down_sum.sum, slopes[3], 1e-10, 1e-12));
}

TEST_F(ExpertsTest, float32_and_bfloat16_are_as_near_the_truth_as_their_types_allow) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Experts some = some_experts(type, 96, 40);
    const at::Tensor x = at::randn({90, 96}).to(type);
    const Rows rows = pack(std::vector<int64_t>{90});
    const at::NoGradGuard no_grad;
    const Routes routes = route(x, some_router(type, 96), rows);
    const Routes wide{routes.ids, routes.weights.to(at::kDouble)};
    const at::Tensor want =
        by_torch(x.to(at::kDouble), wide, some.gate_up.to(at::kDouble), some.down.to(at::kDouble));
    const double error =
        (experts(x, routes, some, rows).to(at::kDouble) - want).abs().max().item<double>();
    EXPECT_LT(error / want.abs().max().item<double>(), type == at::kFloat ? 1e-6 : 0.01);
  }
}

TEST_F(ExpertsTest, adapters_on_an_experts_linears_are_as_if_their_products_were_in_the_weights) {
  const at::Tensor x = kernels::leaf({5, kWidth});
  Experts some = some_experts(at::kDouble);
  Expert &first = some.each[1], &second = some.each[4];
  Dense gate(Dense::drawn(first.gate.weight)), up(Dense::drawn(first.up.weight)),
      down(Dense::drawn(first.down.weight)), both(Dense::drawn(second.gate_up.weight));
  first.gate.delta = &gate, first.up.delta = &up, first.down.delta = &down;
  second.gate_up.delta = &both;
  const at::Tensor gate_up = some.gate_up.clone(), downs = some.down.clone();
  gate_up[1] += at::cat({gate.m, up.m}), gate_up[4] += both.m, downs[1] += down.m;
  gate_up.requires_grad_(), downs.requires_grad_();
  const Routes routes = route(x.detach(), some_router(at::kDouble), rows_);
  const Routes fixed{routes.ids, routes.weights.detach().requires_grad_()};
  const at::Tensor want = by_torch(x, fixed, gate_up, downs), got = experts(x, fixed, some, rows_);
  EXPECT_TRUE(at::allclose(got, want, 1e-11, 1e-13));
  const at::Tensor g = at::randn(want.sizes(), at::kDouble);
  const auto slopes = torch::autograd::grad({want}, {x, fixed.weights, gate_up, downs}, {g});
  const auto ours = torch::autograd::grad({got}, {x, fixed.weights}, {g});
  EXPECT_TRUE(at::allclose(ours[0], slopes[0], 1e-10, 1e-12));
  EXPECT_TRUE(at::allclose(ours[1], slopes[1], 1e-10, 1e-12));
  EXPECT_TRUE(at::allclose(at::cat({gate.grad, up.grad}), slopes[2][1], 1e-10, 1e-12));
  EXPECT_TRUE(at::allclose(both.grad, slopes[2][4], 1e-10, 1e-12));
  EXPECT_TRUE(at::allclose(down.grad, slopes[3][1], 1e-10, 1e-12));
}

TEST_F(ExpertsTest, experts_without_rows_are_neither_computed_nor_handed_to_adapters) {
  Experts some = some_experts(at::kFloat);
  for (int64_t e = 2; e < kExperts; ++e) some.gate_up[e].fill_(std::nanf(""));
  Dense unseen(at::full({kInner, kWidth}, std::nanf("")));
  some.each[5].gate.delta = &unseen;
  const Routes routes{at::tensor({0, 1}, at::kInt).view({1, 2}),
                      at::tensor({0.25f, 0.75f}).view({1, 2})};
  const at::Tensor x = at::randn({1, kWidth}).requires_grad_();
  const at::Tensor y = experts(x, routes, some, rows_of({1}, {-1}, {0}, {1}));
  EXPECT_TRUE(at::allclose(y, by_torch(x, routes, some.gate_up, some.down), 1e-5, 1e-6));
  y.sum().backward();
  EXPECT_TRUE(at::isfinite(x.grad()).all().item<bool>());
}

TEST_F(ExpertsTest, a_sequence_has_the_same_bits_alone_and_among_others) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Experts some = some_experts(type, 64, 40);
    expect_same_bits_alone(some, some_router(type, 64));
  }
}

// Nothing is dropped, and nobody's bits depend on how many others it shares an expert with.
TEST_F(ExpertsTest, rows_that_all_go_to_one_expert_are_all_computed_with_the_bits_of_one_alone) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Experts some = some_experts(type, 64, 40);
    Router router = some_router(type, 64);
    router.options.top_k = 1;
    router.correction = at::tensor({0.f, 0.f, 100.f, 0.f, 0.f, 0.f});
    expect_same_bits_alone(some, router);
    const at::Tensor x = at::randn({700, 64}).to(type);
    const Rows rows = pack(std::vector<int64_t>{700});
    const at::NoGradGuard no_grad;
    const Routes routes = route(x, router, rows);
    EXPECT_TRUE((routes.ids == 2).all().item<bool>());
    const Routes wide{routes.ids, routes.weights.to(at::kDouble)};
    const at::Tensor want =
        by_torch(x.to(at::kDouble), wide, some.gate_up.to(at::kDouble), some.down.to(at::kDouble));
    const at::Tensor got = experts(x, routes, some, rows).to(at::kDouble);
    const double error = (got - want).abs().max().item<double>() / want.abs().max().item<double>();
    EXPECT_LT(error, type == at::kFloat ? 1e-6 : 0.01);
  }
}

TEST_F(ExpertsTest, the_graph_outlives_the_rows_and_the_experts) {
  const at::Tensor x = at::randn({5, kWidth}).requires_grad_();
  at::Tensor y;
  WeightGrad sum;
  {
    Experts some = some_experts(at::kFloat);
    some.down_grad = &sum;
    const Router router = some_router(at::kFloat);
    const Rows rows = rows_of({2, 3}, {-1, -1}, {0, 0}, {1, 1});
    y = experts(x, route(x, router, rows), some, rows);
  }
  y.sum().backward();
  EXPECT_TRUE(sum.sum.defined() && x.grad().defined());
}

TEST_F(ExpertsTest, the_bytes_that_backward_keeps_are_those_of_the_routed_rows) {
  Experts some = some_experts(at::kBFloat16, 64, 40);
  const int64_t row = 2 * 40 * 2 + 4 + 4 + 16;
  EXPECT_EQ(some.saved_bytes(rows_, 3), 5 * 3 * row);
  EXPECT_FALSE(some.needs_input());
  Dense delta(at::zeros({40, 64}));
  for (Expert& expert : some.each) expert.up.delta = &delta;
  EXPECT_EQ(some.saved_bytes(rows_, 3), 5 * 3 * (row + 12));
  EXPECT_TRUE(some.needs_input());
}

}  // namespace
}  // namespace twinkle::nn
