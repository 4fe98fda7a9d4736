#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim/adam.h>
#include <torch/csrc/api/include/torch/optim/adamw.h>

#include <limits>

#include "twinkle/optim/trajectory_for_test.h"

namespace twinkle::optim {
namespace {

TEST(AdamW, TwentyStepsAreTorchs) {
  expect_same_trajectory<torch::optim::AdamW>(
      "AdamW", {{"lr", 1e-3}, {"betas", {0.8, 0.95}}, {"eps", 1e-6}, {"weight_decay", 0.3}},
      torch::optim::AdamWOptions(1e-3).betas({0.8, 0.95}).eps(1e-6).weight_decay(0.3));
}

TEST(AdamW, DefaultsAreTheDocumentedOnes) {
  expect_same_trajectory<torch::optim::AdamW>("AdamW", {},
                                              torch::optim::AdamWOptions(1e-5).weight_decay(0.01));
  EXPECT_EQ(make("AdamW")->lr(), 1e-5);
}

TEST(Adam, TwentyStepsAreTorchs) {
  expect_same_trajectory<torch::optim::Adam>("Adam", {{"lr", 1e-3}, {"weight_decay", 0.3}},
                                             torch::optim::AdamOptions(1e-3).weight_decay(0.3));
}

TEST(Adam, MaximizeClimbsAsItDoesForSgd) {
  for (const char* name : {"AdamW", "Adam", "SGD"}) {
    const Param up{"p", at::zeros({20}), at::ones({20})};
    make(name, JsonObject{{"lr", 0.1}, {"maximize", true}})->step({&up, 1}, 0.1);
    EXPECT_GT(up.value.min().item<float>(), 0.05) << name;
  }
}

TEST(Adam, RefusesOptionsThatItDoesNotKnowOrThatAreOutOfRange) {
  EXPECT_EQ(error_of("AdamW", R"({"learning_rate":1})"),
            "optim: AdamW has no option 'learning_rate', it has lr, betas, eps, weight_decay, "
            "amsgrad, maximize, foreach, fused");
  EXPECT_EQ(error_of("AdamW", R"({"amsgrad":true})"),
            "optim: amsgrad of AdamW is true, only false is supported");
  EXPECT_EQ(error_of("AdamW", R"({"lr":-1})"),
            "optim: lr of AdamW is -1, it must be at least 0 and finite");
  const JsonObject nan{{"lr", std::numeric_limits<double>::quiet_NaN()}};
  EXPECT_EQ(twinkle::error_of([&] { make("AdamW", nan); }),
            "optim: lr of AdamW is nan, it must be at least 0 and finite");
  EXPECT_EQ(error_of("Adam", R"({"betas":[0.9,1.0]})"),
            "optim: betas[1] of Adam is 1, it must be at least 0 and below 1");
  EXPECT_EQ(error_of("Adam", R"({"betas":[0.9]})"),
            "optim: betas of Adam is [9E-1], it must be two numbers");
  EXPECT_EQ(error_of("Adam", R"({"eps":-1e-8})"),
            "optim: eps of Adam is -1e-08, it must be at least 0 and finite");
  for (const char* eps : {"0", "1e-300"}) {
    EXPECT_EQ(error_of("AdamW", ("{\"eps\":" + std::string(eps) + "}").c_str()),
              "optim: eps of AdamW is " + std::string(eps) +
                  ", which is 0 in float32, it must be at least 1.17549e-38");
  }
  const std::string limit = ", it must be finite in float32, at most 3.40282e+38";
  EXPECT_EQ(error_of("AdamW", R"({"lr":1e39})"), "optim: lr of AdamW is 1e+39" + limit);
  EXPECT_EQ(error_of("AdamW", R"({"eps":1e39})"), "optim: eps of AdamW is 1e+39" + limit);
  EXPECT_EQ(error_of("Adam", R"({"weight_decay":1e39})"),
            "optim: weight_decay of Adam is 1e+39" + limit);
  EXPECT_EQ(error_of("AdamW", R"({"lr":1e20,"weight_decay":1e20})"),
            "optim: lr * weight_decay of AdamW is 1e+40" + limit);
  EXPECT_EQ(error_of("AdamW", R"({"lr":1e38,"betas":[0.99,0.999]})"),
            "optim: lr / (1 - betas[0]^step) of AdamW is 1e+40" + limit);
  EXPECT_EQ(error_of("Adam", R"([1])"), "optim: options of Adam must be a JSON object");
}

}  // namespace
}  // namespace twinkle::optim
