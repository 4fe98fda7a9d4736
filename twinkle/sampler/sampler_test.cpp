#include "twinkle/sampler/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "twinkle/base/error_for_test.h"
#include "twinkle/sampler/requests_for_test.h"
#include "twinkle/sampler/tiny_decoder_for_test.h"

namespace twinkle::sampler {
namespace {

// The last token's logits, by a forward over the whole sequence as training does it.
at::Tensor full_logits(model::Decoder& decoder, const std::vector<int32_t>& tokens,
                       int32_t slot = -1) {
  model::Batch batch;
  const int64_t length[] = {std::ssize(tokens)};
  batch.input_ids = at::tensor(std::vector<int64_t>(tokens.begin(), tokens.end()), at::kLong);
  batch.rows = nn::pack(length);
  batch.rows.segments[0].slot = slot;
  const at::NoGradGuard no_grad;
  return nn::linear(decoder.forward(batch), decoder.head(), batch.rows).slice(0, length[0] - 1);
}

class SamplerOf : public testing::TestWithParam<std::tuple<std::string, at::ScalarType>> {
 protected:
  TinyOptions tiny() const {
    return {.family = std::get<0>(GetParam()), .dtype = std::get<1>(GetParam())};
  }
};

INSTANTIATE_TEST_SUITE_P(EachFamilyAndDtype, SamplerOf,
                         testing::Combine(testing::Values("llama", "qwen3"),
                                          testing::Values(at::kFloat, at::kBFloat16)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" +
                                  c10::toString(std::get<1>(info.param));
                         });

TEST_P(SamplerOf, GreedyTextIsThatOfAFullForwardAtEachStep) {
  TinyDecoder decoder(tiny());
  Sampler sampler(*decoder, {.kv_tokens = 1024});
  const Request request{some_prompt(59, 1), {.max_tokens = 20, .temperature = 0}};
  const Completion got = generate(sampler, {&request, 1})[0][0];
  std::vector<int32_t> tokens = request.prompt;
  for (int i = 0; i < 20; ++i) {
    const at::Tensor logits = full_logits(*decoder, tokens);
    const auto id = logits.argmax().item<int32_t>();
    EXPECT_EQ(got.tokens[i], id) << "token " << i;
    EXPECT_EQ(got.logprobs[i], kernels::softmax_stats(logits, 0, id, 1, false).logprob);
    tokens.push_back(id);
  }
  EXPECT_EQ(got.stop_reason, "length");
}

TEST_P(SamplerOf, ARequestGetsTheSameBitsAloneInCompanyAndInAnyOrder) {
  TinyDecoder decoder(tiny());
  const std::vector<Request> requests = mixed_requests();
  Sampler together(*decoder, {.kv_tokens = 4096, .prefill_tokens = 100});
  const auto want = generate(together, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    Sampler alone(*decoder, {.kv_tokens = 1024});
    const auto got = generate(alone, {&requests[i], 1})[0];
    ASSERT_EQ(got.size(), want[i].size());
    for (size_t s = 0; s < got.size(); ++s) {
      expect_same(got[s], want[i][s], "alone, request " + std::to_string(i));
    }
  }
  // Backwards, two by two, while the others decode.
  Sampler late(*decoder, {.kv_tokens = 4096, .max_sequences = 5, .prefill_tokens = 33});
  for (size_t i = requests.size(); i-- > 0;) {
    late.add(requests[i]);
    if (i % 2 == 0) late.step();
    late.step();
  }
  while (late.step()) {
  }
  const std::vector<Outcome> outcomes = late.take_outcomes();
  ASSERT_EQ(outcomes.size(), requests.size());
  for (const Outcome& outcome : outcomes) {
    const size_t i = requests.size() - 1 - static_cast<size_t>(outcome.ticket);
    for (size_t s = 0; s < outcome.completions.size(); ++s) {
      expect_same(outcome.completions[s], want[i][s], "late, request " + std::to_string(i));
    }
  }
}

TEST_P(SamplerOf, LogprobsAreBitForBitTheTrainers) {
  TinyDecoder decoder(tiny());
  Sampler sampler(*decoder, {.kv_tokens = 1024});
  for (const float temperature : {1.0f, 0.5f}) {
    const Request request{some_prompt(70, 2),
                          {.max_tokens = 40, .temperature = temperature, .top_k = 10}};
    const Completion got = generate(sampler, {&request, 1})[0][0];
    const auto want =
        trainer_logprobs(*decoder, joined(request.prompt, got.tokens), 70, temperature);
    EXPECT_EQ(got.logprobs, want);
  }
}

TEST_P(SamplerOf, RunningOutOfPagesChangesTheOrderOfWorkAndNotABit) {
  TinyDecoder decoder(tiny());
  const std::vector<Request> requests = mixed_requests();
  Sampler roomy(*decoder, {.kv_tokens = 4096});
  Sampler tight(*decoder, {.kv_tokens = 320});  // the longest request takes 273
  const auto want = generate(roomy, requests), got = generate(tight, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    for (size_t s = 0; s < want[i].size(); ++s) {
      expect_same(got[i][s], want[i][s], "request " + std::to_string(i));
    }
  }
  EXPECT_GT(tight.num_computed_tokens(), roomy.num_computed_tokens());  // some ran twice
  EXPECT_EQ(tight.num_free_pages(), 5);
}

TEST(Sampler, ASlidingWindowIsKeptOverPages) {
  TinyDecoder decoder({.family = "qwen3", .window = 30});
  Sampler sampler(*decoder, {.kv_tokens = 512});
  const Request request{some_prompt(150, 3), {.max_tokens = 30, .temperature = 0}};
  std::vector<int32_t> tokens = request.prompt;
  const auto got = generate(sampler, {&request, 1});
  for (const int32_t id : got[0][0].tokens) {
    EXPECT_EQ(id, full_logits(*decoder, tokens).argmax().item<int32_t>());
    tokens.push_back(id);
  }
}

TEST(Sampler, SamplesOfAPromptComputeItOnceAndDiffer) {
  TinyDecoder decoder({});
  Sampler sampler(*decoder, {.kv_tokens = 2048});
  const Request request{some_prompt(100, 4), {.max_tokens = 8, .num_samples = 4}};
  const auto group = generate(sampler, {&request, 1})[0];
  EXPECT_EQ(sampler.num_computed_tokens(), 100 + 4 * 7);  // the last token of each is not computed
  EXPECT_EQ(sampler.num_free_pages(), 32);
  EXPECT_NE(group[0].tokens, group[1].tokens);
  for (const Completion& sample : group) {
    EXPECT_EQ(sample.logprobs,
              trainer_logprobs(*decoder, joined(request.prompt, sample.tokens), 100, 1));
  }
}

TEST(Sampler, SeedsRepeatAndDiffer) {
  TinyDecoder decoder({});
  Sampler sampler(*decoder, {.kv_tokens = 1024});
  const auto text = [&](uint64_t seed) {
    const Request request{some_prompt(10, 5), {.max_tokens = 12, .seed = seed}};
    return generate(sampler, {&request, 1})[0][0].tokens;
  };
  EXPECT_EQ(text(1), text(1));
  EXPECT_NE(text(1), text(2));
}

TEST(Sampler, FirstTokensOfManySeedsFollowTheModelsProbabilities) {
  TinyDecoder decoder({.vocab_size = 20, .scale = 0.08f});
  Sampler sampler(*decoder, {.kv_tokens = 1024});
  constexpr int kDraws = 4000;
  const Request request{some_prompt(9, 6, 20),
                        {.max_tokens = 1, .seed = 11, .num_samples = kDraws}};
  std::vector<int> count(20, 0);
  const auto got = generate(sampler, {&request, 1});
  for (const Completion& c : got[0]) ++count[c.tokens[0]];
  const at::Tensor p = full_logits(*decoder, request.prompt).softmax(-1);
  double chi_square = 0;
  for (int i = 0; i < 20; ++i) {
    const double expected = p[0][i].item<double>() * kDraws;
    ASSERT_GT(expected, 5);
    chi_square += (count[i] - expected) * (count[i] - expected) / expected;
  }
  EXPECT_LT(chi_square, 43.8);  // 19 degrees of freedom: exceeded by chance once in 1000
}

TEST(Sampler, EndsAfterAStopTokenUnlessItIsIgnored) {
  TinyDecoder decoder({});
  Request request{some_prompt(10, 7), {.max_tokens = 30, .temperature = 0}};
  Sampler plain(*decoder, {.kv_tokens = 1024});
  const std::vector<int32_t> all = generate(plain, {&request, 1})[0][0].tokens;
  const int32_t stop = all[5];
  const auto until = std::find(all.begin(), all.end(), stop) - all.begin() + 1;
  const std::vector<int32_t> cut(all.begin(), all.begin() + until);

  Sampler with_eos(*decoder, {.kv_tokens = 1024}, {stop});
  const Completion ended = generate(with_eos, {&request, 1})[0][0];
  EXPECT_EQ(ended.tokens, cut);
  EXPECT_EQ(ended.logprobs.size(), cut.size());
  EXPECT_EQ(ended.stop_reason, "stop");
  EXPECT_EQ(ended.matched, "");
  request.params.ignore_eos = true;
  EXPECT_EQ(generate(with_eos, {&request, 1})[0][0].tokens, all);
  request.params.stop_token_ids = {stop};
  EXPECT_EQ(generate(with_eos, {&request, 1})[0][0].tokens, cut);
}

TEST(Sampler, EndsAtTheTokenThatCompletesAStopString) {
  TinyDecoder decoder({});
  Sampler sampler(*decoder, {.kv_tokens = 1024});
  const Decode decode = [](std::span<const int32_t> ids) {
    std::string text;
    for (const int32_t id : ids) text.append("<").append(std::to_string(id)).append(">");
    return text;
  };
  Request request{some_prompt(10, 8), {.max_tokens = 30, .seed = 3}};
  const std::vector<int32_t> all = generate(sampler, {&request, 1})[0][0].tokens;
  const std::string across = std::to_string(all[11]) + "><" + std::to_string(all[12]);
  request.params.stop = {"no such text", across};
  const Completion got = generate(sampler, {&request, 1}, decode)[0][0];
  EXPECT_EQ(got.tokens, std::vector<int32_t>(all.begin(), all.begin() + 13));
  EXPECT_EQ(got.stop_reason, "stop");
  EXPECT_EQ(got.matched, across);
}

TEST(Sampler, EndsWhereTheModelsPositionsEnd) {
  TinyDecoder decoder({.max_positions = 80});
  Sampler sampler(*decoder, {.kv_tokens = 128});
  const Request request{some_prompt(70, 9), {.max_tokens = 1000}};
  const Completion got = generate(sampler, {&request, 1})[0][0];
  EXPECT_EQ(got.tokens.size(), 10u);
  EXPECT_EQ(got.stop_reason, "length");
}

// Adds to every output a number that belongs to the slot.
class SlotDelta final : public nn::Delta {
 public:
  std::vector<at::Tensor> forward(const at::Tensor&, const nn::Rows& rows, at::Tensor& y) override {
    for (int64_t s = 0; s < rows.num_segments(); ++s) {
      if (rows.segments[s].slot < 0) continue;
      y.slice(0, rows.cu_seqlens[s], rows.cu_seqlens[s + 1]) += 0.05 * (1 + rows.segments[s].slot);
    }
    return {};
  }
  void backward(const at::Tensor&, const at::Tensor&, const std::vector<at::Tensor>&,
                const nn::Rows&, at::Tensor&) override {}
};

TEST(Sampler, EachSequenceRunsWithTheAdapterOfItsSlot) {
  TinyDecoder decoder({});
  SlotDelta delta;
  for (const model::NamedLinear& linear : decoder->linears()) linear.linear->delta = &delta;
  Sampler sampler(*decoder, {.kv_tokens = 2048});
  std::vector<Request> requests;
  for (const int32_t slot : {2, -1, 0}) {
    requests.push_back({some_prompt(20, 10), {.max_tokens = 12, .temperature = 0}, slot});
  }
  const auto got = generate(sampler, requests);
  for (size_t r = 0; r < requests.size(); ++r) {
    std::vector<int32_t> tokens = requests[r].prompt;
    for (const int32_t id : got[r][0].tokens) {
      EXPECT_EQ(id, full_logits(*decoder, tokens, requests[r].slot).argmax().item<int32_t>());
      tokens.push_back(id);
    }
  }
  EXPECT_NE(got[0][0].tokens, got[1][0].tokens);
}

TEST(Sampler, OwnersWeightsAndPrioritiesChangeNotABit) {
  TinyDecoder decoder({});
  const std::vector<Request> alone = mixed_requests();
  const auto want = generate(Sampler(*decoder, {}), alone);
  for (uint64_t seed = 0; seed < 4; ++seed) {
    std::vector<Request> requests = alone;
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].owner = std::to_string((seed + i) % 3);
      requests[i].weight = static_cast<double>(1 + (seed * i) % 9);
      requests[i].priority = static_cast<int32_t>((seed + i * i) % 2);
    }
    const auto got = generate(Sampler(*decoder, {.prefill_tokens = 40}), requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      for (size_t s = 0; s < got[i].size(); ++s)
        expect_same(got[i][s], want[i][s], "request " + std::to_string(i));
    }
  }
}

TEST(Sampler, ACancelledRequestLeavesItsPagesAndNoOutcome) {
  TinyDecoder decoder({});
  Sampler sampler(*decoder, {.kv_tokens = 1024});
  const Request request{some_prompt(70, 12), {.max_tokens = 10}};
  const auto want = generate(sampler, {&request, 1});
  const int64_t gone = sampler.add(request), stays = sampler.add(request);
  sampler.step();
  EXPECT_TRUE(sampler.cancel(gone));
  EXPECT_FALSE(sampler.cancel(gone));
  EXPECT_EQ(sampler.num_free_pages(), 16 - 2);
  while (sampler.step()) {
  }
  const std::vector<Outcome> outcomes = sampler.take_outcomes();
  ASSERT_EQ(outcomes.size(), 1u);
  EXPECT_EQ(outcomes[0].ticket, stays);
  expect_same(outcomes[0].completions[0], want[0][0], "the one that stays");
}

TEST(Sampler, TellsHowManyTokensARequestHasThatHasNotEnded) {
  TinyDecoder decoder({});
  Sampler sampler(*decoder, {.kv_tokens = 1024});
  Request request{some_prompt(20, 12), {.max_tokens = 6, .num_samples = 3}};
  request.stream = true;
  const int64_t ticket = sampler.add(request);
  int64_t num_events = 0;
  for (int i = 0; i < 4; ++i) {
    sampler.step();
    num_events += std::ssize(sampler.take_events());
    EXPECT_EQ(sampler.num_generated(ticket), num_events);
  }
  EXPECT_EQ(num_events % 3, 0);
  EXPECT_GT(num_events, 3);
  EXPECT_TRUE(sampler.cancel(ticket));
  EXPECT_EQ(sampler.num_generated(ticket), 0);
}

// NaN for the sequences of slot 1.
class Poison final : public nn::Delta {
 public:
  std::vector<at::Tensor> forward(const at::Tensor&, const nn::Rows& rows, at::Tensor& y) override {
    for (int64_t s = 0; s < rows.num_segments(); ++s) {
      if (rows.segments[s].slot == 1) {
        y.slice(0, rows.cu_seqlens[s], rows.cu_seqlens[s + 1]).fill_(NAN);
      }
    }
    return {};
  }
  void backward(const at::Tensor&, const at::Tensor&, const std::vector<at::Tensor>&,
                const nn::Rows&, at::Tensor&) override {}
};

TEST(Sampler, ANeighboursNanFailsItAloneAndItsPagesCanBeUsedAgain) {
  TinyDecoder decoder({});
  Poison poison;
  for (const model::NamedLinear& linear : decoder->linears()) linear.linear->delta = &poison;
  Sampler sampler(*decoder, {.kv_tokens = 256});
  const Request good{some_prompt(70, 13), {.max_tokens = 10}};
  Request bad = good;
  bad.slot = 1;
  bad.params.num_samples = 2;
  const auto want = generate(sampler, {&good, 1});
  sampler.add(bad);
  sampler.add(good);
  while (sampler.step()) {
  }
  const std::vector<Outcome> outcomes = sampler.take_outcomes();
  ASSERT_EQ(outcomes.size(), 2u);
  EXPECT_EQ(outcomes[0].error,
            "sampler: the logits of token 70 hold NaN or infinity: no token can be chosen; check "
            "the weights for NaN");
  EXPECT_TRUE(outcomes[0].completions.empty());
  expect_same(outcomes[1].completions[0], want[0][0], "beside the NaN");
  EXPECT_EQ(sampler.num_free_pages(), 4);
  expect_same(generate(sampler, {&good, 1})[0][0], want[0][0], "in the NaN's pages");
  EXPECT_EQ(error_of([&] { generate(sampler, {&bad, 1}); }), outcomes[0].error);
  expect_same(generate(sampler, {&good, 1})[0][0], want[0][0], "after the error");
}

TEST(Sampler, RefusesBadRequestsBeforeAnythingIsComputed) {
  TinyDecoder decoder({.max_positions = 300});
  Sampler sampler(*decoder, {.kv_tokens = 128});
  const auto refusal = [&](const Request& request) {
    const Request both[] = {{some_prompt(5, 1), {.max_tokens = 2}}, request};
    return error_of([&] { generate(sampler, both); });
  };
  EXPECT_EQ(refusal({{}, {}}), "sampler: the prompt is empty, it must hold a token");
  EXPECT_EQ(refusal({{1, 97}, {.max_tokens = 1}}),
            "sampler: prompt[1] is 97, the vocabulary has 97 tokens");
  EXPECT_EQ(refusal({{-1}, {.max_tokens = 1}}),
            "sampler: prompt[0] is -1, the vocabulary has 97 tokens");
  EXPECT_EQ(refusal({{1}, {.max_tokens = 1, .stop_token_ids = {500}}}),
            "sampler: stop_token_ids[0] is 500, the vocabulary has 97 tokens");
  EXPECT_EQ(refusal({{1}, {.max_tokens = 1}, -2}), "sampler: slot is -2, it must be at least -1");
  EXPECT_EQ(refusal({.prompt = {1}, .weight = 0}), "sampler: weight is 0, it must be above 0");
  EXPECT_EQ(refusal({{1}, {.max_tokens = -1}}), "sampler: max_tokens is -1, it must be at least 0");
  EXPECT_EQ(refusal({{1}, {.max_tokens = 1, .stop = {"x"}}}),
            "sampler: stop holds strings, but there is no tokenizer to find them with: set a "
            "template, or use stop_token_ids");
  EXPECT_EQ(refusal({some_prompt(300, 1), {}}),
            "sampler: the prompt has 300 tokens, it must leave room for one more in the model's "
            "300 positions");
  EXPECT_EQ(refusal({some_prompt(100, 1), {.max_tokens = 29}}),
            "sampler: the prompt and max_tokens take 129 tokens, the cache has room for 128: raise "
            "kv_tokens or lower max_tokens");
  EXPECT_EQ(sampler.num_computed_tokens(), 0);
}

}  // namespace
}  // namespace twinkle::sampler
