// Log-probabilities that the sampler gives beside its tokens: of the prompt, and the likeliest.
#include <gtest/gtest.h>

#include <algorithm>

#include "twinkle/base/error_for_test.h"
#include "twinkle/sampler/requests_for_test.h"
#include "twinkle/sampler/sampler.h"
#include "twinkle/sampler/tiny_decoder_for_test.h"

namespace twinkle::sampler {
namespace {

Outcome run(Sampler& sampler, const Request& request) {
  sampler.add(request);
  while (sampler.step()) {
  }
  return sampler.take_outcomes().at(0);
}

// The k likeliest behind tokens [0, end), from a forward over all of them as training does it.
TopLogprobs full_top(model::Decoder& decoder, const std::vector<int32_t>& tokens, int64_t end,
                     size_t k, float temperature) {
  std::vector<int32_t> known(tokens.begin(), tokens.begin() + end);
  known.push_back(0);
  TopLogprobs all;
  for (int32_t id = 0; id < decoder.spec().vocab_size; ++id) {
    known.back() = id;
    all.push_back({id, trainer_logprobs(decoder, known, end, temperature)[0]});
  }
  std::ranges::stable_sort(all, [](auto& a, auto& b) { return a.logprob > b.logprob; });
  all.resize(k);
  return all;
}

class Scoring : public testing::TestWithParam<at::ScalarType> {};

INSTANTIATE_TEST_SUITE_P(EachDtype, Scoring, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return c10::toString(info.param); });

TEST_P(Scoring, PromptLogprobsAreBitForBitTheTrainers) {
  TinyDecoder decoder({.family = "qwen3", .dtype = GetParam()});
  for (const double temperature : {1.0, 0.6, 0.0}) {
    for (const int64_t length : {1, 2, 64, 65, 200}) {
      const Request request{some_prompt(length, 1),
                            {.max_tokens = 3, .temperature = temperature, .prompt_logprobs = true}};
      std::vector<float> want;
      if (length > 1) {
        want = trainer_logprobs(*decoder, request.prompt, 1,
                                temperature == 0 ? 1.0f : static_cast<float>(temperature));
      }
      for (const int64_t prefill : {7, 512}) {
        Sampler sampler(*decoder, {.kv_tokens = 1024, .prefill_tokens = prefill});
        const Outcome got = run(sampler, request);
        EXPECT_EQ(got.prompt.logprobs, want) << length << " tokens, temperature " << temperature;
        EXPECT_TRUE(got.prompt.top_logprobs.empty());
        EXPECT_EQ(got.completions[0].tokens.size(), 3u);
      }
    }
  }
}

TEST_P(Scoring, PromptLogprobsStayWhenPagesAreSharedAndWhenTheyRunOut) {
  TinyDecoder decoder({.dtype = GetParam()});
  Request request{some_prompt(200, 2), {.max_tokens = 40, .num_samples = 3}, -1, 7};
  request.params.prompt_logprobs = true;
  const auto want = trainer_logprobs(*decoder, request.prompt, 1, 1);
  Sampler alone(*decoder, {.kv_tokens = 2048});
  const auto completions = generate(alone, {&request, 1})[0];
  Sampler sampler(*decoder, {.kv_tokens = 64 * 6, .prefill_tokens = 50});
  std::vector<int64_t> scored;
  for (int i = 0; i < 6; ++i) {
    request.params.prompt_logprobs = i % 2 == 1;  // the others leave and take pages
    const int64_t ticket = sampler.add(request);
    if (i % 2 == 1) scored.push_back(ticket);
  }
  while (sampler.step()) {
  }
  for (const Outcome& outcome : sampler.take_outcomes()) {
    const bool wants = std::ranges::find(scored, outcome.ticket) != scored.end();
    EXPECT_EQ(outcome.prompt.logprobs, wants ? want : std::vector<float>{});
    for (size_t s = 0; s < 3; ++s) {
      expect_same(outcome.completions[s], completions[s], std::to_string(outcome.ticket));
    }
  }
  EXPECT_EQ(sampler.num_free_pages(), 6);
}

TEST_P(Scoring, TheLikeliestTokensAreThoseOfAFullForward) {
  TinyDecoder decoder({.dtype = GetParam(), .vocab_size = 23, .num_layers = 1});
  const Request request{some_prompt(9, 3, 23),
                        {.max_tokens = 6,
                         .temperature = 0.7,
                         .logprobs = false,
                         .top_logprobs = 4,
                         .top_prompt_logprobs = 2}};
  Sampler sampler(*decoder, {.kv_tokens = 1024});
  const Outcome got = run(sampler, request);
  const Completion& completion = got.completions[0];
  const auto tokens = joined(request.prompt, completion.tokens);
  EXPECT_TRUE(completion.logprobs.empty());
  ASSERT_EQ(completion.top_logprobs.size(), 6u);
  ASSERT_EQ(got.prompt.top_logprobs.size(), 8u);
  EXPECT_EQ(got.prompt.logprobs, trainer_logprobs(*decoder, request.prompt, 1, 0.7f));
  for (int64_t t = 0; t < 6; ++t) {
    EXPECT_EQ(completion.top_logprobs[static_cast<size_t>(t)],
              full_top(*decoder, tokens, 9 + t, 4, 0.7f));
  }
  for (int64_t t = 1; t < 9; ++t) {
    EXPECT_EQ(got.prompt.top_logprobs[static_cast<size_t>(t - 1)],
              full_top(*decoder, tokens, t, 2, 0.7f));
  }
}

TEST(ScoringOfPrompts, WithoutTokensToGenerateThePromptAloneIsComputed) {
  TinyDecoder decoder({.max_positions = 100});
  Sampler sampler(*decoder, {.kv_tokens = 256});
  const Request request{some_prompt(100, 4),
                        {.max_tokens = 0, .num_samples = 2, .prompt_logprobs = true}};
  const Outcome got = run(sampler, request);
  EXPECT_EQ(got.prompt.logprobs, trainer_logprobs(*decoder, request.prompt, 1, 1));
  ASSERT_EQ(got.completions.size(), 2u);
  EXPECT_TRUE(got.completions[1].tokens.empty());
  EXPECT_EQ(got.completions[1].stop_reason, "length");
  EXPECT_EQ(sampler.num_computed_tokens(), 100);
  EXPECT_EQ(sampler.num_free_pages(), 4);
  EXPECT_EQ(error_of([&] { sampler.add({some_prompt(101, 4), {.max_tokens = 0}}); }),
            "sampler: the prompt has 101 tokens, it must leave room for one more in the model's "
            "100 positions");
}

TEST(ScoringOfPrompts, APromptOfNaNFailsWithTheTokensPlace) {
  TinyDecoder decoder({});
  const at::NoGradGuard no_grad;
  for (const model::NamedWeight& w : decoder->weights()) {
    if (w.name == "model.embed_tokens.weight") w.value->select(0, 5).fill_(NAN);
  }
  Sampler sampler(*decoder, {.kv_tokens = 256});
  const Outcome got = run(sampler, {{1, 2, 5, 4, 3}, {.max_tokens = 2, .prompt_logprobs = true}});
  EXPECT_EQ(got.error,
            "sampler: the logits of token 3 hold NaN or infinity: no token can be chosen; check "
            "the weights for NaN");
  EXPECT_EQ(sampler.num_free_pages(), 4);
}

}  // namespace
}  // namespace twinkle::sampler
