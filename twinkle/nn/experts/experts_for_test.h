// For tests of experts: sizes, rows, adapters, and what must hold of llama's form of them and of
// gpt-oss's alike.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "twinkle/kernels/finite_difference_for_test.h"
#include "twinkle/nn/experts/experts.h"
#include "twinkle/nn/rows_for_test.h"

namespace twinkle::nn {

inline constexpr int64_t kExperts = 6, kWidth = 7, kInner = 5;

class ExpertsFixture : public testing::Test {
 protected:
  ExpertsFixture() { at::manual_seed(1); }
  const Rows rows_ = rows_of({2, 3}, {-1, -1}, {0, 0}, {1, 1});
};

// The library's float64 products would have to be tried first, for seconds.
inline void make_exact(Experts& experts) {
  for (Expert& expert : experts.each)
    expert.down.exact = experts.gate_up.scalar_type() != at::kDouble;
}

// Gradients of all that can learn.
struct Sums {
  WeightGrad gate_up, down, gate_up_bias, down_bias, router, router_bias;

  void train(Experts& experts) {
    experts.gate_up_grad = &gate_up, experts.down_grad = &down;
    if (!experts.clamped) return;
    experts.gate_up_bias_grad = &gate_up_bias, experts.down_bias_grad = &down_bias;
  }
  void train(Router& of) {
    of.weight_grad = &router;
    if (of.bias.defined()) of.bias_grad = &router_bias;
  }
};

// An adapter of every slot on one linear: y += x m^T, and what it gets.
struct Dense : Delta {
  explicit Dense(at::Tensor factor) : m(std::move(factor)), grad(at::zeros_like(m)) {}
  static at::Tensor drawn(const at::Tensor& like) {
    return at::randn(like.sizes(), at::kDouble) * 0.3;
  }

  at::Tensor m, grad;
  std::vector<at::Tensor> forward(const at::Tensor& x, const Rows&, at::Tensor& y) override {
    EXPECT_TRUE(x.is_contiguous() && y.is_contiguous());
    y += x.matmul(m.t());
    return {};
  }
  int64_t saved_bytes(const Rows& rows) const override { return rows.num_tokens() * 12; }
  void backward(const at::Tensor& dy, const at::Tensor& x, const std::vector<at::Tensor>&,
                const Rows&, at::Tensor& dx) override {
    grad += dy.t().matmul(x);
    if (dx.defined()) dx += dy.matmul(m);
  }
};

// Gradients of float64 experts, in x, through the router too.
inline void expect_finite_differences(const Experts& some, const Router& router, const Rows& rows) {
  const at::Tensor x = kernels::leaf({5, kWidth});
  kernels::expect_gradients([&] { return experts(x, route(x, router, rows), some, rows); }, {x});
}

// A sequence's results, and the gradients that it gives, alone and among others that want the same
// experts; and its rows' one at a time, as in decoding. Of width 64.
inline void expect_same_bits_alone(const Experts& some, const Router& router) {
  const at::ScalarType type = some.gate_up.scalar_type();
  const at::Tensor x = at::randn({190, 64}).to(type), g = at::randn({190, 64}).to(type);
  const auto pass = [&](int64_t begin, int64_t end, const Rows& rows) {
    Experts mine = some;
    Router its = router;
    Sums sums;
    sums.train(mine), sums.train(its);
    const at::Tensor in = x.slice(0, begin, end).clone().requires_grad_();
    const at::Tensor y = experts(in, route(in, its, rows), mine, rows);
    y.backward(g.slice(0, begin, end));
    std::vector<at::Tensor> out{y.detach(), in.grad()};
    for (const WeightGrad* sum : {&sums.gate_up, &sums.down, &sums.gate_up_bias, &sums.down_bias,
                                  &sums.router, &sums.router_bias})
      if (sum->sum.defined()) out.push_back(sum->sum);
    return out;
  };
  auto all = pass(0, 190, rows_of({100, 30, 60}, {-1, -1, -1}, {0, 0, 0}, {0, 1, 0}));
  EXPECT_EQ(all.size(), some.clamped ? 8u : 5u);
  const at::Tensor rows = all[0];
  for (const size_t i : {0, 1}) all[i] = all[i].slice(0, 100, 130);
  const auto one = pass(100, 130, rows_of({30}, {-1}, {0}, {1}));
  ASSERT_EQ(all.size(), one.size());
  for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(at::equal(all[i], one[i])) << type << i;
  const at::NoGradGuard no_grad;
  const Rows row = pack(std::vector<int64_t>{1});
  for (const int64_t t : {0, 120, 189}) {
    const at::Tensor in = x.narrow(0, t, 1);
    EXPECT_TRUE(at::equal(experts(in, route(in, router, row), some, row), rows.narrow(0, t, 1)));
  }
}

}  // namespace twinkle::nn
