#include "twinkle/loss/loss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "twinkle/base/error_for_test.h"

namespace twinkle::loss {
namespace {

Inputs two_sequences() {
  return {.logprobs = at::tensor({-1.0F, -2.0F, -3.0F}),
          .weights = at::ones({3}),
          .cu_seqlens = {0, 2, 3},
          .extras = {}};
}

TEST(Loss, IsFoundByBothOfItsNames) {
  EXPECT_EQ(find("cross_entropy").class_name, "CrossEntropyLoss");
  EXPECT_EQ(find("CrossEntropyLoss").name, "cross_entropy");
  EXPECT_EQ(find("LinearLoss").name, "linear");
}

TEST(Loss, AnUnknownNameIsRefusedWithTheKnownOnes) {
  const std::string text = invalid_of([] { find("HingeLoss"); });
  EXPECT_TRUE(
      text.starts_with("loss: unknown loss 'HingeLoss'; did you mean 'SimPOLoss'? Known are "
                       "cross_entropy, CrossEntropyLoss, LinearLoss, importance_sampling, "))
      << text;
  for (const Loss& loss : all())
    EXPECT_NE(text.find(loss.class_name), std::string::npos) << loss.class_name << ": " << text;
}

TEST(Loss, AnUnknownNameIsToldTheOneThatWasProbablyMeant) {
  const std::string text = invalid_of([] { find("cross_entrophy"); });
  EXPECT_TRUE(
      text.starts_with("loss: unknown loss 'cross_entrophy'; did you mean "
                       "'cross_entropy'? Known are cross_entropy, CrossEntropyLoss, "))
      << text;
  EXPECT_TRUE(invalid_of([] {
                find("stable_reinforce");
              }).starts_with("loss: unknown loss 'stable_reinforce'; known are cross_entropy, "));
}

TEST(Loss, WhatAStepDividesByDoesNotDependOnLogProbabilities) {
  for (const Loss& loss : all()) {
    if (loss.of_labels) continue;  // it reads no log-probabilities
    SCOPED_TRACE(loss.class_name);
    Inputs in = two_sequences();
    in.entropies = at::ones({3});
    for (const Extra& extra : loss.extras) {
      if (extra.name == "ref_sums") continue;  // in the place of ref_logps
      in.extras[std::string(extra.name)] = at::full({extra.per_sequence ? 2 : 3}, 0.9F);
      if (extra.name == "desirable") in.extras["desirable"] = at::tensor({1.0F, -1.0F});
    }
    const double want = run(loss, in).num_tokens;
    EXPECT_GT(want, 0);
    in.logprobs = at::Tensor();
    EXPECT_EQ(num_tokens(loss, in), want);
  }
}

TEST(Loss, RefusesLogprobsOfAnotherTypeOrLength) {
  Inputs in = two_sequences();
  in.logprobs = at::zeros({3}, at::kInt);
  EXPECT_EQ(invalid_of([&] { run(find("cross_entropy"), in); }),
            "loss: cross_entropy: logprobs is CPUIntType, it must be a contiguous "
            "one-dimensional float32 tensor on the CPU");
  in.logprobs = at::Tensor();
  EXPECT_EQ(invalid_of([&] { run(find("cross_entropy"), in); }),
            "loss: cross_entropy: logprobs is missing, it must be a contiguous one-dimensional "
            "float32 tensor on the CPU");
  in.logprobs = at::zeros({4});
  EXPECT_EQ(invalid_of([&] { run(find("cross_entropy"), in); }),
            "loss: cross_entropy: logprobs has 4 rows, weights has 3, they must be equally many");
}

TEST(Loss, RefusesSequenceBoundsThatDoNotCoverTheRows) {
  for (const std::vector<int64_t>& bounds :
       {std::vector<int64_t>{}, {0, 2}, {1, 3}, {0, 2, 1, 3}, {0, 3, 4}}) {
    Inputs in = two_sequences();
    in.cu_seqlens = bounds;
    EXPECT_EQ(invalid_of([&] { run(find("cross_entropy"), in); }),
              "loss: cross_entropy: cu_seqlens must rise from 0 to the 3 rows of weights");
  }
}

TEST(Loss, RefusesMissingAndMisshapenExtras) {
  Inputs in = two_sequences();
  EXPECT_EQ(invalid_of([&] { run(find("linear"), in); }),
            "loss: linear needs 'grad', pass it with the batch");
  for (const int64_t size : {2, 4}) {  // two sequences, but a gradient is a row's
    in.extras["grad"] = at::zeros({size});
    EXPECT_EQ(invalid_of([&] { run(find("linear"), in); }),
              "loss: linear: grad has " + std::to_string(size) +
                  " entries, it must have one per row (3)");
  }
}

TEST(Loss, RefusesExtrasThatItDoesNotRead) {
  Inputs in = two_sequences();
  in.extras["advantages"] = at::zeros({3});
  EXPECT_EQ(invalid_of([&] { run(find("cross_entropy"), in); }),
            "loss: CrossEntropyLoss does not read 'advantages', it reads none");
  in.extras["grad"] = at::zeros({3});
  EXPECT_EQ(invalid_of([&] { prepare(find("linear"), in); }),
            "loss: LinearLoss does not read 'advantages', it reads grad, entropy_grad");
}

TEST(Loss, OneThatIsNotSeparableCannotBePrepared) {
  Loss whole = find("cross_entropy");
  whole.prepare = nullptr;
  EXPECT_FALSE(whole.separable());
  EXPECT_EQ(invalid_of([&] { prepare(whole, two_sequences()); }),
            "loss: cross_entropy needs the log-probabilities of all rows before its gradient is "
            "known, use run()");
}

TEST(Loss, IsFiniteOnlyWhenTheLossAndAllOfItsGradientAre) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(finite({.loss = 1, .grad = at::ones({2})}));
  EXPECT_FALSE(finite({.loss = std::nan(""), .grad = at::ones({2})}));
  EXPECT_FALSE(finite({.loss = 1, .grad = at::tensor({0.0F, inf})}));
  EXPECT_FALSE(finite({.loss = inf, .grad = at::ones({2})}));
}

// Every separable loss, row by row in uneven chunks, against its whole run.
TEST(Loss, ChunksOfASeparableLossGiveTheWholeRunsGradientBitForBit) {
  constexpr int64_t n = 257;
  at::Tensor weights = at::rand({n});
  weights.slice(0, 0, n, 3).zero_();
  const Inputs given{
      .logprobs = -at::rand({n}) * 9, .weights = weights, .cu_seqlens = {0, 100, 100, n}};
  for (const Loss& loss : all()) {
    if (!loss.separable()) continue;
    Inputs in = given;
    for (const Extra& extra : loss.extras)
      if (!extra.optional) in.extras[std::string(extra.name)] = at::randn({n});
    Inputs before = in;
    before.logprobs = at::Tensor();
    const at::Tensor whole = run(loss, in).grad;
    at::Tensor grad = at::full({n}, 7.0F);
    const TokenGrad rows = prepare(loss, before);
    for (int64_t begin = 0; begin < n; begin += 31) {
      const auto size = static_cast<size_t>(std::min<int64_t>(31, n - begin));
      rows(begin, {in.logprobs.const_data_ptr<float>() + begin, size},
           {grad.mutable_data_ptr<float>() + begin, size});
    }
    EXPECT_TRUE(at::equal(whole, grad)) << loss.name;
  }
}

}  // namespace
}  // namespace twinkle::loss
