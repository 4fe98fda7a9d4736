#include <gtest/gtest.h>

#include "twinkle/loss/loss.h"

#include "twinkle/base/error_for_test.h"

namespace twinkle::loss {
namespace {

Inputs linear_example() {
  return {.logprobs = at::tensor({-1.0F, -2.0F, -3.0F, -4.0F}),
          .weights = at::tensor({1.0F, 1.0F, 0.0F, 1.0F}),
          .cu_seqlens = {0, 2, 4},
          .extras = {{"grad", at::tensor({0.5F, -1.0F, 9.0F, 2.0F})}}};
}

std::string linear_error(const Inputs& in, const Json& options) {
  return twinkle::error_of([&] { run(find("linear"), in, options); });
}

TEST(Linear, CarriesAGivenGradientOnTheScoredRows) {
  const Output out = run(find("LinearLoss"), linear_example());
  EXPECT_EQ(out.loss, -0.5 + 2.0 - 8.0);
  EXPECT_TRUE(at::equal(out.grad, at::tensor({0.5F, -1.0F, 0.0F, 2.0F})));
  EXPECT_EQ(out.num_tokens, 1) << "a mean";
}

TEST(Linear, CarriesAGivenGradientOfEntropies) {
  Inputs in = linear_example();
  EXPECT_FALSE(entropy_grad(find("linear"), in).defined());
  in.extras["entropy_grad"] = at::tensor({1.0F, 0.0F, 7.0F, -2.0F});
  in.entropies = at::tensor({0.5F, 1.0F, 1.0F, 2.0F});
  EXPECT_TRUE(at::equal(entropy_grad(find("linear"), in), at::tensor({1.0F, 0.0F, 0.0F, -2.0F})));
  EXPECT_EQ(run(find("linear"), in).loss, -0.5 + 2.0 - 8.0 + 0.5 - 4.0);
  EXPECT_FALSE(entropy_grad(find("cross_entropy"), in).defined()) << "it does not look at them";
}

// Any sum of the library's over so many would be cut for its threads.
TEST(Linear, SumsSequenceBySequenceHoweverLongItIs) {
  constexpr int64_t kRows = 60'000, kHalf = 20'000;
  Inputs in{.logprobs = at::randn({kRows}), .weights = at::ones({kRows})};
  in.cu_seqlens = {0, kHalf, kRows};
  in.extras = {{"grad", at::randn({kRows})}, {"entropy_grad", at::randn({kRows})}};
  in.entropies = at::rand({kRows});
  const auto through = [&](const char* grad, const at::Tensor& values) {
    const float* g = in.extras.at(grad).const_data_ptr<float>();
    const float* v = values.const_data_ptr<float>();
    double first = 0, second = 0;
    for (int64_t i = 0; i < kRows; ++i)
      (i < kHalf ? first : second) += static_cast<double>(g[i]) * static_cast<double>(v[i]);
    return first + second;
  };
  EXPECT_EQ(run(find("linear"), in).loss,
            through("grad", in.logprobs) + through("entropy_grad", in.entropies));
}

TEST(Linear, StepsDivideByTheTokensThatTheCallerNames) {
  EXPECT_EQ(run(find("linear"), linear_example(), JsonObject{{"num_tokens", 3}}).num_tokens, 3);
  EXPECT_EQ(run(find("linear"), linear_example(), JsonObject{{"num_tokens", 0}}).num_tokens, 0);
}

TEST(Linear, RefusesWhatItCannotUse) {
  EXPECT_EQ(linear_error(linear_example(), JsonObject{{"num_tokens", -1}}),
            "loss: num_tokens is -1, it must be a number of at least 0");
  EXPECT_EQ(linear_error(linear_example(), JsonObject{{"scale", 1}}),
            "loss: LinearLoss has no option 'scale', it has num_tokens");
  Inputs in = linear_example();
  in.extras["grad"] = at::zeros({2});
  EXPECT_EQ(linear_error(in, {}), "loss: linear: grad has 2 entries, it must have one per row (4)");
  in = linear_example();
  in.extras["entropy_grad"] = at::zeros({2});
  EXPECT_EQ(twinkle::error_of([&] { entropy_grad(find("linear"), in); }),
            "loss: linear: entropy_grad has 2 entries, it must have one per row (4)");
  in.extras["entropy_grad"] = at::zeros({4});
  EXPECT_EQ(linear_error(in, {}),
            "loss: linear: entropies is missing, it must be a contiguous "
            "one-dimensional float32 tensor on the CPU");
}

}  // namespace
}  // namespace twinkle::loss
