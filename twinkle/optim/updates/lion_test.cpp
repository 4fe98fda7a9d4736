#include <gtest/gtest.h>

#include <cmath>

#include "twinkle/optim/trajectory_for_test.h"

namespace twinkle::optim {
namespace {

TEST(Lion, TwentyStepsAreThePapersInFloat64) {
  at::manual_seed(3);
  Param p{"w", at::randn({33, 5}), {}};
  at::Tensor want = p.value.to(at::kDouble), mean = at::zeros({33, 5}, at::kDouble);
  const auto lion =
      make("Lion", JsonObject{{"lr", 1e-2}, {"betas", {0.8, 0.95}}, {"weight_decay", 0.3}});
  for (int step = 0; step < kSteps; ++step) {
    p.grad = at::randn({33, 5}) * 8;
    const at::Tensor g = p.grad.to(at::kDouble) / 8;
    want = want - 1e-2 * ((mean * 0.8 + g * 0.2).sign() + 0.3 * want);
    mean = mean * 0.95 + g * 0.05;
    lion->step({&p, 1}, lion->lr(), 0.125);
  }
  EXPECT_LT((p.value - want).abs().max().item<double>(), 1e-6);
  EXPECT_LT((lion->state().tensors[0].second - mean).abs().max().item<double>(), 1e-6);
}

TEST(Lion, RefusesWhatItHasNot) {
  EXPECT_EQ(error_of("Lion", R"({"eps":1})"),
            "optim: Lion has no option 'eps', it has lr, betas, weight_decay");
  EXPECT_EQ(error_of("Lion", R"({"betas":[0.9,1]})"),
            "optim: betas[1] of Lion is 1, it must be at least 0 and below 1");
  EXPECT_EQ(error_of("Lion", R"({"betas":0.9})"),
            "optim: betas of Lion is 9E-1, it must be two numbers");
}

}  // namespace
}  // namespace twinkle::optim
