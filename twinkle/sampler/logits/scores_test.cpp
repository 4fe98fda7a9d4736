#include "twinkle/sampler/logits/scores.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "twinkle/nn/head/head.h"

namespace twinkle::sampler {
namespace {

class Scores : public testing::TestWithParam<at::ScalarType> {};

INSTANTIATE_TEST_SUITE_P(EachDtype, Scores, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return c10::toString(info.param); });

TEST_P(Scores, TheLikeliestAreThoseOfASortWithTheLogprobsOfTheSoftmax) {
  at::manual_seed(1);
  for (const int64_t vocab : {1, 7, 300, 4099}) {
    // Rounded, so that there are equals.
    const at::Tensor logits = ((at::randn({3, vocab}) * 16).round() / 8).to(GetParam());
    const at::Tensor wide = logits.to(at::kFloat);
    for (const float temperature : {1.0f, 0.3f}) {
      for (const int64_t k : {1, 5, 128}) {
        const auto stats = kernels::softmax_stats(logits, 1, 0, temperature, false);
        const TopLogprobs got = likeliest(logits, 1, k, temperature, stats);
        std::vector<int32_t> order(static_cast<size_t>(vocab));
        for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
        const float* x = wide.const_data_ptr<float>() + vocab;
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return x[a] > x[b]; });
        ASSERT_EQ(std::ssize(got), std::min(k, vocab));
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_EQ(got[i].id, order[i]);
          EXPECT_EQ(got[i].logprob,
                    static_cast<float>(
                        kernels::softmax_stats(logits, 1, order[i], temperature, false).logprob));
        }
      }
    }
  }
}

TEST_P(Scores, OfTokensAreTheTrainersHeadsBitForBit) {
  at::manual_seed(2);
  constexpr int64_t kTokens = 300;  // more than two chunks
  const at::Tensor hidden = at::randn({kTokens, 32}).to(GetParam());
  const nn::Linear head{at::randn({97, 32}).to(GetParam())};
  nn::Targets targets;
  for (int64_t t = 0; t < kTokens; ++t) {
    targets.rows.push_back(t);
    targets.ids.push_back(static_cast<int32_t>(t * 31 % 97));
    targets.temperature.push_back(0.7f);
  }
  const nn::Rows rows = nn::pack(std::vector<int64_t>{kTokens});
  const auto want = nn::head_forward(hidden, head, targets, {rows}).logprobs;
  PromptScores whole, pieces;
  score_tokens(hidden, {head}, targets.ids, {0.7f, 3}, whole);
  EXPECT_EQ(whole.logprobs, want);
  ASSERT_EQ(whole.top_logprobs.size(), want.size());
  int64_t begin = 0;
  for (const int64_t end : {1, 2, 130, 131, 300}) {
    score_tokens(hidden.slice(0, begin, end), {head},
                 std::span(targets.ids)
                     .subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                 {0.7f, 3}, pieces);
    begin = end;
  }
  EXPECT_EQ(pieces.logprobs, want);
  EXPECT_EQ(pieces.top_logprobs, whole.top_logprobs);
  PromptScores none;
  score_tokens(hidden, {head}, targets.ids, {0.7f}, none);
  EXPECT_TRUE(none.top_logprobs.empty());
}

TEST(ScoresOfNaN, NoneIsTheLikeliest) {
  at::Tensor logits = at::zeros({1, 50});
  logits[0][20] = NAN;
  const auto stats = kernels::softmax_stats(logits, 0, 1, 1, false);
  EXPECT_TRUE(likeliest(logits, 0, 5, 1, stats).empty());
}

}  // namespace
}  // namespace twinkle::sampler
