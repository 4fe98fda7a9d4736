#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim/sgd.h>

#include "twinkle/optim/trajectory_for_test.h"

namespace twinkle::optim {
namespace {

TEST(Sgd, TwentyStepsAreTorchsForEveryKindOfMomentum) {
  const auto torchs = [] { return torch::optim::SGDOptions(1e-2).weight_decay(0.1); };
  const JsonObject base = {{"lr", 1e-2}, {"weight_decay", 0.1}};
  expect_same_trajectory<torch::optim::SGD>("SGD", base, torchs());
  JsonObject options = base;
  options["momentum"] = 0.9;
  expect_same_trajectory<torch::optim::SGD>("SGD", options, torchs().momentum(0.9));
  options["nesterov"] = true;
  expect_same_trajectory<torch::optim::SGD>("SGD", options, torchs().momentum(0.9).nesterov(true));
  options["nesterov"] = false;
  options["dampening"] = 0.4;
  expect_same_trajectory<torch::optim::SGD>("SGD", options, torchs().momentum(0.9).dampening(0.4));
}

TEST(Sgd, RefusesOptionsThatItDoesNotKnowOrThatAreOutOfRange) {
  EXPECT_EQ(error_of("SGD", R"({"betas":[0.9,0.9]})"),
            "optim: SGD has no option 'betas', it has lr, momentum, dampening, weight_decay, "
            "nesterov, maximize, foreach, fused");
  EXPECT_EQ(error_of("SGD", R"({"nesterov":true})"),
            "optim: nesterov of SGD is true with momentum 0 and dampening 0, it needs a momentum "
            "above 0 and no dampening");
  EXPECT_EQ(error_of("SGD", R"({"dampening":2})"),
            "optim: dampening of SGD is 2, it must be at least 0 and at most 1");
  const std::string limit = ", it must be finite in float32, at most 3.40282e+38";
  EXPECT_EQ(error_of("SGD", R"({"lr":1e45})"), "optim: lr of SGD is 1e+45" + limit);
  EXPECT_EQ(error_of("SGD", R"({"momentum":1e39})"), "optim: momentum of SGD is 1e+39" + limit);
  EXPECT_EQ(error_of("SGD", R"({"weight_decay":1e39})"),
            "optim: weight_decay of SGD is 1e+39" + limit);
  EXPECT_EQ(error_of("SGD", R"({"lr":1e20,"weight_decay":1e20})"),
            "optim: lr * weight_decay of SGD is 1e+40" + limit);
}

}  // namespace
}  // namespace twinkle::optim
