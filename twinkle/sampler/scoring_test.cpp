// Log-probabilities that the sampler gives beside its tokens: of the prompt, and the likeliest.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "twinkle/base/error_for_test.h"
#include "twinkle/mesh/thread_comm.h"
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

// All that a prompt can be asked for.
SamplingParams all_scores(int64_t length) {
  SamplingParams params{.max_tokens = 4,
                        .seed = 5,
                        .prompt_logprobs = true,
                        .top_prompt_logprobs = 2,
                        .prompt_alt_tokens = 3};
  for (int32_t t = 1; t < length; t += 3) params.prompt_targets.push_back({t, t % 97});
  return params;
}

TEST_P(Scoring, TargetsAndAlternativesAreScoredAsTheTrainerScoresThemAndMoveNothingElse) {
  TinyDecoder decoder({.family = "qwen3", .dtype = GetParam()});
  const std::vector<int32_t> prompt = some_prompt(150, 1);
  Sampler sampler(*decoder, {.kv_tokens = 1024, .prefill_tokens = 33});
  const SamplingParams params = all_scores(150);
  const Outcome got = run(sampler, {prompt, params});
  SamplingParams plain = params;
  plain.prompt_alt_tokens = 0;
  plain.prompt_targets.clear();
  const Outcome without = run(sampler, {prompt, plain});
  expect_same(got.completions[0], without.completions[0], "the sample");
  EXPECT_EQ(got.prompt.logprobs, without.prompt.logprobs);
  EXPECT_EQ(got.prompt.top_logprobs, without.prompt.top_logprobs);
  ASSERT_EQ(got.prompt.target_logprobs.size(), params.prompt_targets.size());
  ASSERT_EQ(got.prompt.alt_tokens.size(), 149u * 3);
  const auto trained = [&](int64_t position, int32_t id) {
    std::vector<int32_t> known(prompt.begin(), prompt.begin() + position);
    known.push_back(id);
    return trainer_logprobs(*decoder, known, position, 1)[0];
  };
  for (size_t i = 0; i < params.prompt_targets.size(); i += 7) {
    const auto [position, id] = params.prompt_targets[i];
    EXPECT_EQ(got.prompt.target_logprobs[i], trained(position, id)) << position;
  }
  for (size_t i = 0; i < got.prompt.alt_tokens.size(); i += 40) {
    const auto [id, logprob] = got.prompt.alt_tokens[i];
    EXPECT_EQ(logprob, trained(static_cast<int64_t>(i) / 3 + 1, id)) << i;
  }
  const Outcome alone = run(sampler, {prompt, {.max_tokens = 0, .prompt_targets = {{149, 3}}}});
  EXPECT_EQ(alone.prompt, PromptScores{.target_logprobs = {trained(149, 3)}});
}

TEST_P(Scoring, ScoresStayWhenPagesAreSharedRunOutOrPromptsAreCut) {
  TinyDecoder decoder({.dtype = GetParam()});
  Request request{some_prompt(200, 2), all_scores(200), -1, 7};
  request.params.num_samples = 3;
  request.params.max_tokens = 40;
  Sampler alone(*decoder, {.kv_tokens = 2048});
  const Outcome want = run(alone, request);
  Sampler sampler(*decoder, {.kv_tokens = 64 * 6, .prefill_tokens = 50});
  for (int i = 0; i < 3; ++i) sampler.add(request);
  while (sampler.step()) {
  }
  for (const Outcome& got : sampler.take_outcomes()) {
    EXPECT_EQ(got.prompt, want.prompt);
    for (size_t s = 0; s < 3; ++s) expect_same(got.completions[s], want.completions[s], "shared");
  }
}

TEST_P(Scoring, EachOfTwoRanksHasTheScoresOfAllRequests) {
  std::vector<Request> requests;
  for (unsigned i = 0; i < 4; ++i) requests.push_back({some_prompt(40 + i, i), all_scores(40 + i)});
  std::vector<PromptScores> want;
  TinyDecoder alone({.dtype = GetParam()});
  Sampler sampler(*alone, {.kv_tokens = 1024});
  for (const Request& request : requests) want.push_back(run(sampler, request).prompt);
  const auto comms = mesh::thread_comms(2);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      TinyDecoder decoder({.dtype = GetParam()});
      Sampler of_rank(*decoder, {.kv_tokens = 1024, .prefill_tokens = 50}, {}, *comms[r]);
      for (const Request& request : requests) of_rank.add(request);
      while (of_rank.step()) {
      }
      std::vector<PromptScores> got(want.size());
      for (const Outcome& outcome : of_rank.take_outcomes())
        got[static_cast<size_t>(outcome.ticket)] = outcome.prompt;
      EXPECT_EQ(got, want) << "rank " << r;
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST_P(Scoring, OnlyTheLastTokensAreScoredAndTheBeginningComesFromTheCache) {
  TinyDecoder decoder({.dtype = GetParam()});
  const std::vector<int32_t> prompt = some_prompt(200, 2);
  Request request{
      prompt, {.max_tokens = 0, .prompt_logprobs = true, .top_prompt_logprobs = 2}, -1, 7};
  Sampler sampler(*decoder, {.kv_tokens = 2048});
  const PromptScores whole = run(sampler, request).prompt;
  // The state before the first token that is scored is computed, what is before it is not.
  for (const auto& [last_n, shared] : {std::pair{7, 192}, {8, 128}, {72, 64}, {199, 0}}) {
    request.params.prompt_logprobs_last_n = last_n;
    const int64_t before = sampler.num_shared_tokens();
    const PromptScores got = run(sampler, request).prompt;
    EXPECT_EQ(sampler.num_shared_tokens() - before, shared) << last_n;
    EXPECT_EQ(got.logprobs, std::vector(whole.logprobs.end() - last_n, whole.logprobs.end()));
    EXPECT_EQ(got.top_logprobs,
              std::vector(whole.top_logprobs.end() - last_n, whole.top_logprobs.end()));
  }
  // It limits neither of these.
  request.params.prompt_alt_tokens = 1;
  request.params.prompt_targets = {{1, prompt[1]}};
  request.params.prompt_logprobs_last_n = 2;
  const PromptScores got = run(sampler, request).prompt;
  EXPECT_EQ(got.logprobs.size(), 2u);
  EXPECT_EQ(got.alt_tokens.size(), 199u);
  EXPECT_EQ(got.target_logprobs, std::vector{whole.logprobs[0]});
}

TEST(ScoringOfPrompts, WhatDoesNotFitThePromptIsRefused) {
  TinyDecoder decoder({});
  Sampler sampler(*decoder, {.kv_tokens = 256});
  const auto refusal = [&](const SamplingParams& params) {
    return error_of([&] { sampler.add({{1, 2, 3}, params}); });
  };
  EXPECT_EQ(refusal({.prompt_logprobs = true, .prompt_logprobs_last_n = 3}),
            "sampler: prompt_logprobs_last_n is 3, it must be at most 2, the prompt's tokens "
            "behind the first");
  const std::string has = ", the prompt has 3 tokens and the vocabulary 97";
  EXPECT_EQ(refusal({.prompt_targets = {{2, 5}, {3, 5}}}),
            "sampler: prompt_targets[1] has position 3 and id 5" + has);
  EXPECT_EQ(refusal({.prompt_targets = {{2, 97}}}),
            "sampler: prompt_targets[0] has position 2 and id 97" + has);
}

TEST(ScoringOfPrompts, APromptOfOneTokenHasNoScores) {
  TinyDecoder decoder({});
  Sampler sampler(*decoder, {.kv_tokens = 256});
  const Outcome got = run(sampler, {{5}, {.max_tokens = 2, .prompt_alt_tokens = 4}});
  EXPECT_EQ(got.prompt, PromptScores{});
  EXPECT_EQ(got.completions[0].tokens.size(), 2u);
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
  for (const SamplingParams& asked : {SamplingParams{.max_tokens = 2, .prompt_alt_tokens = 1},
                                      SamplingParams{.max_tokens = 2, .prompt_targets = {{3, 1}}}})
    EXPECT_EQ(run(sampler, {{1, 2, 5, 4, 3}, asked}).error, got.error);
}

}  // namespace
}  // namespace twinkle::sampler
