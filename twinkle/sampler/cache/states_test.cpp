// Sampling from a decoder some of whose layers keep a state: the bits of a request are those that
// it gets alone, and the trainer's.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "twinkle/sampler/requests_for_test.h"
#include "twinkle/sampler/sampler.h"
#include "twinkle/sampler/tiny_decoder_for_test.h"

namespace twinkle::sampler {
namespace {

class SamplerStates : public testing::TestWithParam<at::ScalarType> {
 protected:
  TinyDecoder decoder_{{.family = "qwen3", .dtype = GetParam(), .delta = true}};
};

INSTANTIATE_TEST_SUITE_P(EachDtype, SamplerStates, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return c10::toString(info.param); });

TEST_P(SamplerStates, OthersCutsForksSnapshotsAndPreemptionChangeNotABit) {
  const std::vector<Request> requests = related_requests(7);
  std::vector<std::vector<Completion>> want;
  for (const Request& request : without_version(requests)) {
    Sampler alone(*decoder_, {.kv_tokens = 8192});
    want.push_back(generate(alone, {&request, 1})[0]);
  }
  for (const int64_t prefill : {1, 33, 512}) {
    Sampler sampler(*decoder_, {.kv_tokens = 8192, .prefill_tokens = prefill});
    expect_all_same(generate(sampler, without_version(requests)), want, "nothing shared");
    expect_all_same(generate(sampler, requests), want, "together");
    const int64_t first = sampler.num_computed_tokens();
    expect_all_same(generate(sampler, requests), want, "again");
    EXPECT_LT(sampler.num_computed_tokens() - first, first / 2) << "no snapshot was used";
    EXPECT_EQ(sampler.num_free_pages(), 128);
  }
  Sampler tight(*decoder_, {.kv_tokens = 64 * 7, .max_sequences = 2});
  for (const char* round : {"tight", "tight again"}) {
    expect_all_same(generate(tight, requests), want, round);
    EXPECT_EQ(tight.num_free_pages(), 7);
  }
}

TEST_P(SamplerStates, LogprobsAreTheTrainersWithASnapshotAndWithout) {
  Sampler sampler(*decoder_, {.kv_tokens = 2048});
  Request request{some_prompt(140, 3), {.max_tokens = 70}, -1, 7};
  for (const uint64_t seed : {1, 2, 3}) {
    request.params.seed = seed;
    const int64_t before = sampler.num_computed_tokens();
    const Completion got = generate(sampler, {&request, 1})[0][0];
    EXPECT_EQ(sampler.num_computed_tokens() - before, (seed == 1 ? 140 : 140 - 128) + 69);
    EXPECT_EQ(got.logprobs,
              trainer_logprobs(*decoder_, joined(request.prompt, got.tokens), 140, 1));
  }
}

TEST_P(SamplerStates, ScoresOfAPromptAreTheTrainersWhereverItsPassesEnd) {
  for (const int64_t prefill : {7, 64, 512}) {
    Sampler sampler(*decoder_, {.kv_tokens = 2048, .prefill_tokens = prefill});
    const Request request{some_prompt(200, 4), {.max_tokens = 1, .prompt_logprobs = true}, -1, 7};
    for (int round = 0; round < 2; ++round) {
      sampler.add(request);
      while (sampler.step()) {
      }
      const auto scores = sampler.take_outcomes()[0].prompt.logprobs;
      const auto want = trainer_logprobs(*decoder_, request.prompt, 1, 1);
      EXPECT_TRUE(std::equal(want.begin(), want.end(), scores.end() - 199)) << prefill;
    }
  }
}

TEST(SamplerStatesOfMany, CancelledAtAnyPointTheOthersKeepTheirBits) {
  TinyDecoder decoder({.family = "qwen3", .delta = true});
  const std::vector<Request> kinds = related_requests(7);
  Sampler alone(*decoder, {.kv_tokens = 4096});
  const auto want = generate(alone, without_version(kinds));
  std::mt19937 random(6);
  Sampler sampler(*decoder, {.kv_tokens = 64 * 20, .max_sequences = 6, .prefill_tokens = 90});
  std::map<int64_t, size_t> live;  // ticket: kind
  size_t checked = 0;
  for (int step = 0; step < 400; ++step) {
    if (random() % 3 == 0 && live.size() < 12) {
      const size_t kind = random() % kinds.size();
      Request request = kinds[kind];
      request.version = random() % 3;
      live.emplace(sampler.add(std::move(request)), kind);
    }
    if (random() % 8 == 0 && !live.empty()) {
      const auto gone = std::next(live.begin(), static_cast<ptrdiff_t>(random() % live.size()));
      EXPECT_TRUE(sampler.cancel(gone->first));
      live.erase(gone);
    }
    if (random() % 50 == 0) sampler.reset_prefix_cache();
    sampler.step();
    for (const Outcome& outcome : sampler.take_outcomes()) {
      const size_t kind = live.at(outcome.ticket);
      live.erase(outcome.ticket);
      for (size_t s = 0; s < outcome.completions.size(); ++s) {
        expect_same(outcome.completions[s], want[kind][s], "step " + std::to_string(step));
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 10u);
}

}  // namespace
}  // namespace twinkle::sampler
