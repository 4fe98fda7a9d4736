#include <ATen/ops/cross_entropy_loss.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>

#include "twinkle/base/error_for_test.h"
#include "twinkle/loss/formula.h"
#include "twinkle/loss/loss.h"
#include "twinkle/loss/reduce.h"

namespace twinkle::loss {
namespace {

Inputs example(int64_t n) {
  at::manual_seed(11);
  at::Tensor weights = at::ones({n});
  weights.slice(0, 0, n, 4).zero_();
  return {
      .logprobs = -at::rand({n}) * 9, .weights = weights, .cu_seqlens = {0, 7, n}, .extras = {}};
}

Output cross_entropy_of(const Inputs& in, const char* options = "{}") {
  return run(find("cross_entropy"), in, parse_json(options, "options"));
}

TEST(CrossEntropy, EqualsTorchsOnLogitsForBothReductions) {
  at::manual_seed(3);
  const at::Tensor logits = at::randn({20, 13});
  const at::Tensor labels = at::randint(0, 13, {20}, at::kLong);
  labels.slice(0, 0, 20, 3).fill_(-100);
  const at::Tensor scored = labels.ne(-100);
  const at::Tensor logprobs = at::log_softmax(logits, -1)
                                  .gather(1, labels.clamp_min(0).unsqueeze(1))
                                  .squeeze(1)
                                  .contiguous();
  const Inputs in{.logprobs = logprobs, .weights = scored.to(at::kFloat), .cu_seqlens = {0, 20}};
  const auto torchs = [&](int64_t reduction) {
    return at::cross_entropy_loss(logits, labels, {}, reduction, -100).item<double>();
  };
  EXPECT_NEAR(cross_entropy_of(in).loss, torchs(at::Reduction::Sum), 1e-5);
  EXPECT_EQ(cross_entropy_of(in).num_tokens, 13);
  EXPECT_NEAR(cross_entropy_of(in, R"({"reduction":"mean"})").loss, torchs(at::Reduction::Mean),
              1e-6);
  EXPECT_EQ(cross_entropy_of(in, R"({"reduction":"mean"})").num_tokens, 1);
}

TEST(CrossEntropy, GradientIsAutogradsForEveryOption) {
  const Inputs in = example(50);
  for (const bool mean : {false, true})
    for (const bool dft : {false, true}) {
      const Output expected = differentiate(
          in,
          [&](const at::Tensor& lp) {
            const at::Tensor p = dft ? lp.detach().exp() : at::ones_like(lp);
            const at::Tensor sum = -sequence_sums(in.weights * p * lp, in.cu_seqlens).sum();
            return mean ? sum / num_scored(in.weights) : sum;
          },
          0);
      const JsonObject options = {{"reduction", mean ? "mean" : "sum"}, {"dft", dft}};
      const Output out = run(find("cross_entropy"), in, options);
      EXPECT_NEAR(out.loss, expected.loss, 1e-5) << mean << dft;
      EXPECT_TRUE(at::allclose(out.grad, expected.grad, 1e-6, 1e-8)) << mean << dft;
    }
}

TEST(CrossEntropy, IgnoredRowsCountForNothingWhateverTheyHold) {
  Inputs in = example(50);
  const Output clean = cross_entropy_of(in);
  in.logprobs.slice(0, 0, 50, 4).fill_(-std::numeric_limits<float>::infinity());
  const Output out = cross_entropy_of(in);
  EXPECT_EQ(out.loss, clean.loss);
  EXPECT_TRUE(finite(out));
  EXPECT_TRUE(at::equal(out.grad, clean.grad));
}

TEST(CrossEntropy, OfNoScoredRowIsZeroInBothReductions) {
  Inputs in = example(10);
  in.weights.zero_();
  for (const char* options : {R"({"reduction":"sum"})", R"({"reduction":"mean"})"}) {
    const Output out = cross_entropy_of(in, options);
    EXPECT_EQ(out.loss, 0);
    EXPECT_EQ(out.num_tokens, 0);
    EXPECT_TRUE(at::equal(out.grad, at::zeros({10})));
  }
}

TEST(CrossEntropy, ALossOfTwoSequencesIsTheSumOfTheirLossesBitForBit) {
  const Inputs both = example(40);
  const auto part = [&](int64_t begin, int64_t end) {
    return cross_entropy_of({.logprobs = both.logprobs.slice(0, begin, end),
                             .weights = both.weights.slice(0, begin, end),
                             .cu_seqlens = {0, end - begin}})
        .loss;
  };
  EXPECT_EQ(cross_entropy_of(both).loss, part(0, 7) + part(7, 40));
}

TEST(CrossEntropy, RefusesOptionsThatItDoesNotKnow) {
  const auto text = [](const char* options) {
    return error_of([&] { cross_entropy_of(example(10), options); });
  };
  EXPECT_EQ(text(R"({"label_smoothing":0.1})"),
            "loss: CrossEntropyLoss has no option 'label_smoothing', it has ignore_index, "
            "reduction, dft");
  EXPECT_EQ(text(R"({"reduction":"none"})"),
            "loss: reduction is 'none', it must be 'sum' or 'mean'");
  EXPECT_EQ(text(R"({"ignore_index":0})"),
            "loss: ignore_index is 0, labels are ignored by -100 only");
  EXPECT_EQ(text("[1]"), "loss: options of CrossEntropyLoss must be a JSON object");
}

}  // namespace
}  // namespace twinkle::loss
