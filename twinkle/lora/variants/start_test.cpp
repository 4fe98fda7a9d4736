#include "twinkle/lora/variants/start.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "twinkle/base/error_for_test.h"

namespace twinkle::lora {
namespace {

std::vector<at::Tensor> started(const std::string& init, const at::Tensor& weight,
                                std::optional<uint64_t> key = 5) {
  return start_of({.init = init}, key, weight, {.rank = 4, .scale = 0.5});
}

// A matrix [12, 9] of these singular values.
at::Tensor matrix_of(const at::Tensor& singular_values) {
  at::manual_seed(2);
  const auto orthogonal = [](int64_t n) {
    return std::get<0>(at::linalg_qr(at::randn({n, 9}, at::kDouble)));
  };
  return orthogonal(12).mul(singular_values).mm(orthogonal(9).t());
}

TEST(Start, GaussianIsNormalWithDeviationOneOverTheRank) {
  const at::Tensor weight = at::zeros({3, 20000});
  const auto values = started("gaussian", weight);
  ASSERT_EQ(values.size(), 2u);
  EXPECT_NEAR(values[0].std().item<double>(), 0.25, 0.005);
  EXPECT_NEAR(values[0].mean().item<double>(), 0, 0.005);
  EXPECT_GT(values[0].abs().max().item<double>(), 0.75) << "not uniform";
  EXPECT_TRUE(at::equal(values[1], at::zeros({3, 4})));
  EXPECT_TRUE(at::equal(started("gaussian", weight)[0], values[0])) << "a function of the key";
  EXPECT_FALSE(at::equal(started("gaussian", weight, 6)[0], values[0]));
  EXPECT_LE(started("", weight)[0].abs().max().item<double>(), 1 / std::sqrt(20000.0));
}

TEST(Start, PissaIsTheLargestSingularValuesShareOfTheWeight) {
  const at::Tensor sizes = at::arange(9, 0, -1, at::kDouble), weight = matrix_of(sizes);
  const auto values = started("pissa", weight);
  ASSERT_EQ(values.size(), 4u);
  // The rest of the weight has the other singular values.
  const at::Tensor rest = weight - 0.5 * values[1].mm(values[0]);
  const at::Tensor left = std::get<1>(at::linalg_svd(rest, false));
  EXPECT_LT((left.narrow(0, 0, 5) - sizes.narrow(0, 4, 5)).abs().max().item<double>(), 1e-10);
  EXPECT_LT(left.narrow(0, 5, 4).abs().max().item<double>(), 1e-10);
  // Each factor has the square roots.
  const at::Tensor share = at::diag(sizes.narrow(0, 0, 4) / 0.5);
  EXPECT_TRUE(at::allclose(values[0].mm(values[0].t()), share, 1e-10, 1e-10));
  EXPECT_TRUE(at::allclose(values[1].t().mm(values[1]), share, 1e-10, 1e-10));
  EXPECT_TRUE(at::equal(values[2], values[0]) && at::equal(values[3], values[1]));
}

TEST(Start, IterationsComeCloseToTheSingularValues) {
  const at::Tensor weight = matrix_of(at::pow(0.5, at::arange(9, at::kDouble)));
  const at::Tensor exact = started("pissa", weight)[1].mm(started("pissa", weight)[0]);
  const auto error = [&](const std::string& init) {
    const auto values = started(init, weight);
    return (values[1].mm(values[0]) - exact).abs().max().item<double>();
  };
  EXPECT_GT(error("pissa_niter_0"), 1e-4);
  EXPECT_LT(error("pissa_niter_16"), 1e-7);
  EXPECT_TRUE(at::equal(started("pissa_niter_2", weight)[0], started("pissa_niter_2", weight)[0]));
}

TEST(Start, WithoutAKeyAllIsZero) {
  const at::Tensor weight = at::randn({12, 9});
  for (const char* init : {"", "gaussian", "pissa", "pissa_niter_1"}) {
    const auto zeros = started(init, weight, std::nullopt), values = started(init, weight);
    ASSERT_EQ(zeros.size(), values.size());
    for (size_t i = 0; i < zeros.size(); ++i)
      EXPECT_TRUE(at::equal(zeros[i], at::zeros_like(values[i]))) << init;
  }
}

TEST(Start, RefusesWhatItHasNotAndARankAboveTheMatrixs) {
  for (const char* init :
       {"orthogonal", "false", "pissa_niter_", "pissa_niter_-1", "pissa_niter_2x"})
    EXPECT_EQ(error_of([&] { started(init, at::zeros({4, 4})); }),
              std::string("lora: init_lora_weights is '") + init +
                  "', it must be true, 'gaussian', 'pissa' or 'pissa_niter_' and a number");
  EXPECT_EQ(error_of([&] { started("pissa", at::ones({3, 8})); }),
            "lora: init_lora_weights is 'pissa' and the rank 4, but a matrix of [3, 8] has 3 "
            "singular values: take a lower r, or leave it out of target_modules");
}

}  // namespace
}  // namespace twinkle::lora
