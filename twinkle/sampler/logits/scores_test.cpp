#include "twinkle/sampler/logits/scores.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "twinkle/nn/head/head.h"
#include "twinkle/sampler/logits/sampling.h"

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

constexpr int64_t kTokens = 300, kVocab = 97;  // more than two chunks

// A prompt of one token more, as the first has no score, and the states before the others.
struct Scene {
  at::Tensor hidden;
  nn::Linear head;
  std::vector<int32_t> prompt;

  explicit Scene(at::ScalarType dtype) {
    at::manual_seed(2);
    hidden = at::randn({kTokens, 32}).to(dtype);
    head = {at::randn({kVocab, 32}).to(dtype)};
    for (int64_t t = 0; t <= kTokens; ++t) prompt.push_back(static_cast<int32_t>(t * 31 % kVocab));
  }
  // The trainer's log-probabilities of ids that follow each state.
  std::vector<float> trained(std::span<const int32_t> ids, float temperature) const {
    nn::Targets targets;
    for (int64_t t = 0; t < kTokens; ++t) targets.rows.push_back(t);
    targets.ids.assign(ids.begin(), ids.end());
    targets.temperature.assign(ids.size(), temperature);
    return nn::head_forward(hidden, head, targets, {nn::pack(std::vector<int64_t>{kTokens})})
        .logprobs;
  }
  PromptScores scores(const SamplingParams& params, int64_t begin = 0,
                      int64_t end = kTokens) const {
    return score_tokens(hidden.slice(0, begin, end), {head}, prompt, begin + 1, params);
  }
  // The same in pieces, as a step's budget cuts a prompt.
  PromptScores pieces(const SamplingParams& params) const {
    PromptScores out;
    const auto add = [](auto& to, const auto& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    int64_t begin = 0;
    for (const int64_t end : {1, 2, 130, 131, 300}) {
      const PromptScores piece = scores(params, begin, end);
      add(out.logprobs, piece.logprobs);
      add(out.top_logprobs, piece.top_logprobs);
      add(out.alt_tokens, piece.alt_tokens);
      add(out.target_logprobs, piece.target_logprobs);
      begin = end;
    }
    return out;
  }
};

TEST_P(Scores, OfTokensAreTheTrainersHeadsBitForBit) {
  const Scene scene(GetParam());
  const SamplingParams params{.temperature = 0.7, .top_prompt_logprobs = 3};
  const PromptScores whole = scene.scores(params);
  EXPECT_EQ(whole.logprobs, scene.trained(std::span(scene.prompt).subspan(1), 0.7f));
  ASSERT_EQ(whole.top_logprobs.size(), whole.logprobs.size());
  EXPECT_EQ(scene.pieces(params), whole);
  const PromptScores plain = scene.scores({.temperature = 0.7});
  EXPECT_EQ(plain, PromptScores{.logprobs = whole.logprobs});
}

TEST_P(Scores, OfTargetsAreTheTrainersHeadsBitForBit) {
  const Scene scene(GetParam());
  const std::vector<int32_t> own(scene.prompt.begin() + 1, scene.prompt.end());
  std::vector<int32_t> others = own;
  for (int32_t& id : others) id = (id + 1) % kVocab;
  const std::vector<float> of_own = scene.trained(own, 0.7f),
                           of_others = scene.trained(others, 0.7f);
  SamplingParams params{.temperature = 0.7};
  std::vector<float> want;
  for (int32_t t = 1; t <= kTokens; ++t) {  // none of some tokens, one of most, two of others
    const auto i = static_cast<size_t>(t - 1);
    if (t % 11 == 0) continue;
    params.prompt_targets.push_back({t, own[i]});
    want.push_back(of_own[i]);
    if (t % 7 < 5) continue;
    params.prompt_targets.push_back({t, others[i]});
    want.push_back(of_others[i]);
  }
  const PromptScores whole = scene.scores(params);
  EXPECT_EQ(whole.target_logprobs, want);
  EXPECT_EQ(scene.pieces(params), whole);
}

TEST_P(Scores, AlternativesAreWhatPickChoosesByTheirRandomNumbersAlone) {
  const Scene scene(GetParam());
  for (const double temperature : {1.0, 0.4, 0.0}) {
    SamplingParams params{.seed = 9, .temperature = temperature, .prompt_alt_tokens = 5};
    const PromptScores whole = scene.scores(params);
    const at::Tensor logits =
        nn::sampling_logits(scene.hidden, scene.head, nn::pack(std::vector<int64_t>{kTokens}))
            .to(at::kFloat);
    PickScratch scratch;
    std::set<int32_t> seen;
    ASSERT_EQ(std::ssize(whole.alt_tokens), kTokens * 5);
    for (int64_t t = 0; t < kTokens; ++t) {
      const std::span row(logits.const_data_ptr<float>() + t * kVocab, size_t{kVocab});
      for (uint64_t j = 0; j < 5; ++j) {
        const auto [id, logprob] = whole.alt_tokens[static_cast<size_t>(t) * 5 + j];
        const double u = uniform(9, j, static_cast<uint64_t>(t + 1));
        EXPECT_EQ(id, pick(row, {.temperature = temperature}, {}, u, scratch));
        seen.insert(id);
      }
    }
    EXPECT_GT(seen.size(), 40u);
    std::vector<int32_t> firsts;
    std::vector<float> logprobs;
    for (size_t i = 0; i < whole.alt_tokens.size(); i += 5) {
      firsts.push_back(whole.alt_tokens[i].id);
      logprobs.push_back(whole.alt_tokens[i].logprob);
    }
    EXPECT_EQ(logprobs, scene.trained(firsts, temperature_of(params)));
    EXPECT_EQ(scene.pieces(params), whole);
    params.top_k = 1, params.top_p = 0.1, params.repetition_penalty = 3;
    EXPECT_EQ(scene.scores(params), whole);  // temperature alone shapes what is drawn
    params.seed = 10;
    EXPECT_EQ(scene.scores(params) == whole, temperature == 0);
  }
}

TEST(ScoresOfNaN, NoneIsTheLikeliest) {
  at::Tensor logits = at::zeros({1, 50});
  logits[0][20] = NAN;
  const auto stats = kernels::softmax_stats(logits, 0, 1, 1, false);
  EXPECT_TRUE(likeliest(logits, 0, 5, 1, stats).empty());
}

}  // namespace
}  // namespace twinkle::sampler
