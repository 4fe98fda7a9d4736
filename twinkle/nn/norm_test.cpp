#include "twinkle/nn/norm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "twinkle/base/error.h"
#include "twinkle/kernels/finite_difference_for_test.h"
#include "twinkle/nn/rows_for_test.h"

namespace twinkle::nn {
namespace {

const Rows kRows = rows_of({2, 3}, {-1, -1}, {0, 0}, {1, 1});  // both learn

TEST(RmsNorm, rows_have_unit_mean_square) {
  const RmsNorm norm{.weight = at::ones({8}), .eps = 0};
  const auto y = rms_norm(at::randn({5, 8}), norm, kRows);
  EXPECT_TRUE(at::allclose(y.square().mean(-1), at::ones({5}), 1e-5, 1e-5));
}

TEST(RmsNorm, gradients_equal_finite_differences) {
  const auto x = kernels::leaf({5, 3, 10});
  auto weight = at::randn({10}, at::kDouble);
  WeightGrad grad;
  RmsNorm norm{.weight = weight, .eps = 1e-3, .grad = &grad};
  const auto weights = at::randn({5, 3, 10}, at::kDouble);
  const auto value = [&] { return (rms_norm(x, norm, kRows) * weights).sum(); };
  value().backward();
  EXPECT_TRUE(at::allclose(x.grad(), kernels::finite_difference(value, x.detach()), 1e-6, 1e-7));
  EXPECT_TRUE(at::allclose(grad.sum, kernels::finite_difference(value, weight), 1e-6, 1e-7));
  EXPECT_EQ(grad.sum.scalar_type(), at::kDouble);
}

TEST(RmsNorm, a_zero_centred_one_multiplies_by_one_more_and_rounds_once) {
  const auto x = kernels::leaf({5, 10});
  auto weight = at::randn({10}, at::kDouble);
  WeightGrad grad;
  const RmsNorm norm{.weight = weight, .eps = 1e-3, .grad = &grad, .zero_centred = true};
  const RmsNorm plain{.weight = weight + 1, .eps = 1e-3};
  const auto weights = at::randn({5, 10}, at::kDouble);
  const auto value = [&] { return (rms_norm(x, norm, kRows) * weights).sum(); };
  EXPECT_TRUE(at::equal(rms_norm(x, norm, kRows), rms_norm(x, plain, kRows)));
  value().backward();
  EXPECT_TRUE(at::allclose(x.grad(), kernels::finite_difference(value, x.detach()), 1e-6, 1e-7));
  EXPECT_TRUE(at::allclose(grad.sum, kernels::finite_difference(value, weight), 1e-6, 1e-7));
  const at::NoGradGuard no_grad;
  const auto added = add_rms_norm(x, x, norm, kRows);
  EXPECT_TRUE(at::equal(added.normed, rms_norm(2 * x, plain, kRows)));
  // In bfloat16 1 + w is not rounded before the product is.
  const auto low = x.to(at::kBFloat16), w = weight.to(at::kBFloat16);
  const auto exact = rms_norm(low, RmsNorm{.weight = w.to(at::kFloat) + 1}, kRows);
  EXPECT_TRUE(at::equal(rms_norm(low, RmsNorm{.weight = w, .zero_centred = true}, kRows), exact));
}

TEST(RmsNorm, a_second_backward_adds_to_the_weights_sum_and_a_frozen_weight_has_none) {
  const auto x = at::randn({5, 8}).to(at::kBFloat16).requires_grad_();
  WeightGrad grad;
  const RmsNorm norm{.weight = at::ones({8}, at::kBFloat16), .eps = 1e-5, .grad = &grad};
  rms_norm(x, norm, kRows).sum().backward();
  const auto once = grad.sum.clone();
  rms_norm(x, norm, kRows).sum().backward();
  EXPECT_EQ(grad.sum.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::allclose(grad.sum, 2 * once));
  const auto before = grad.sum.clone();
  rms_norm(x, RmsNorm{.weight = norm.weight}, kRows).sum().backward();
  EXPECT_TRUE(at::equal(grad.sum, before));
}

TEST(RmsNorm, only_learning_sequences_add_to_the_weights_sum) {
  const Rows rows = pack(std::vector<int64_t>{2, 3, 1, 4});
  const auto x = at::randn({10, 8}), weights = at::randn({10, 8});
  const auto grad_of = [&](const std::vector<uint8_t>& learn, const at::Tensor& loss_weights) {
    WeightGrad grad;
    const RmsNorm norm{.weight = at::ones({8}), .grad = &grad};
    const Rows rows = rows_of({2, 3, 1, 4}, {-1, -1, -1, -1}, {0, 0, 0, 0}, learn);
    const auto in = x.clone().requires_grad_();
    (rms_norm(in, norm, rows) * loss_weights).sum().backward();
    return std::pair(grad.sum, in.grad());
  };
  // A gradient that is no number, where nobody learns, must not get into the sum.
  const auto broken = weights.clone();
  broken.slice(0, 2, 5).fill_(NAN);
  const auto zeroed = weights.clone();
  zeroed.slice(0, 2, 5).zero_();
  const auto [sum, dx] = grad_of({1, 0, 1, 1}, broken);
  EXPECT_TRUE(at::equal(sum, grad_of({1, 1, 1, 1}, zeroed).first));
  EXPECT_TRUE(at::equal(dx.slice(0, 5, 10), grad_of({1, 1, 1, 1}, weights).second.slice(0, 5, 10)));
}

TEST(RmsNorm, bf16_is_no_farther_from_the_truth_than_the_plain_formula_in_bf16) {
  const auto x = at::randn({5, 100}, at::kDouble).to(at::kBFloat16);
  const auto w = at::randn({100}, at::kDouble).to(at::kBFloat16);
  const auto formula = [](const at::Tensor& a) {
    return (a.square().mean(-1, true) + 1e-6).rsqrt();
  };
  const auto wide = x.to(at::kDouble);
  const auto truth = wide * formula(wide) * w.to(at::kDouble);
  const auto f32 = x.to(at::kFloat);
  const auto plain = w * (f32 * formula(f32)).to(at::kBFloat16);
  const auto ours = rms_norm(x, RmsNorm{.weight = w}, kRows);
  EXPECT_LE((ours - truth).norm().item<double>(), (plain - truth).norm().item<double>());
}

TEST(RmsNorm, a_sequence_that_does_not_learn_after_all_adds_nothing) {
  WeightGrad grad;
  const auto x = at::ones({5, 8}).requires_grad_();
  Rows rows = rows_of({2, 3}, {-1, -1}, {0, 0}, {1, 1});
  const auto y = rms_norm(x, RmsNorm{.weight = at::ones({8}), .grad = &grad}, rows);
  rows.segments[0].learn.end();
  y.sum().backward();
  EXPECT_TRUE(at::allclose(grad.sum, at::full({8}, 3.0), 1e-4));
}

TEST(RmsNorm, its_rows_may_be_gone_before_the_backward_pass) {
  const auto grad_of = [](bool gone) {
    WeightGrad grad;
    const auto x = at::arange(40, at::kFloat).view({5, 8}).requires_grad_();
    Rows rows = rows_of({2, 3}, {-1, -1}, {0, 0}, {0, 1});
    const auto y = rms_norm(x, RmsNorm{.weight = at::ones({8}), .grad = &grad}, rows);
    if (gone) rows = rows_of({5}, {-1}, {0}, {1});
    y.sum().backward();
    return grad.sum;
  };
  EXPECT_TRUE(at::equal(grad_of(true), grad_of(false)));
}

TEST(RmsNorm, rows_of_another_number_is_an_error) {
  EXPECT_THROW(rms_norm(at::ones({4, 8}), RmsNorm{.weight = at::ones({8})}, kRows), Error);
}

}  // namespace
}  // namespace twinkle::nn
