// The sampler with pages shared between requests, and with requests cancelled at any point: the
// survivors' bits are those that they get alone.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <thread>

#include "twinkle/mesh/thread_comm.h"
#include "twinkle/sampler/requests_for_test.h"
#include "twinkle/sampler/sampler.h"
#include "twinkle/sampler/tiny_decoder_for_test.h"

namespace twinkle::sampler {
namespace {

class Sharing : public testing::TestWithParam<at::ScalarType> {};

INSTANTIATE_TEST_SUITE_P(EachDtype, Sharing, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return c10::toString(info.param); });

TEST_P(Sharing, PagesOfOtherRequestsChangeNotABit) {
  TinyDecoder decoder({.family = "qwen3", .dtype = GetParam()});
  const std::vector<Request> requests = related_requests(7);
  Sampler plain(*decoder, {.kv_tokens = 8192});
  const auto want = generate(plain, without_version(requests));
  for (const int64_t prefill : {33, 512}) {
    Sampler sampler(*decoder, {.kv_tokens = 8192, .prefill_tokens = prefill});
    expect_all_same(generate(sampler, requests), want, "together");
    const int64_t first = sampler.num_computed_tokens();
    EXPECT_LT(first, plain.num_computed_tokens() - 700);
    expect_all_same(generate(sampler, requests), want, "again");
    EXPECT_LE(sampler.num_computed_tokens() - first, first - 256);  // the longest prompt
    EXPECT_EQ(sampler.num_free_pages(), 128);
  }
  Sampler tight(*decoder, {.kv_tokens = 64 * 7, .max_sequences = 5});
  for (const char* round : {"tight", "tight again"}) {
    expect_all_same(generate(tight, requests), want, round);
    EXPECT_EQ(tight.num_free_pages(), 7);
  }
}

TEST_P(Sharing, LogprobsThroughSharedPagesAreTheTrainers) {
  TinyDecoder decoder({.dtype = GetParam()});
  Sampler sampler(*decoder, {.kv_tokens = 2048});
  Request request{some_prompt(140, 3), {.max_tokens = 30}, -1, 7};
  generate(sampler, {&request, 1});
  for (const uint64_t seed : {1, 2}) {
    request.params.seed = seed;
    const int64_t before = sampler.num_computed_tokens();
    const Completion got = generate(sampler, {&request, 1})[0][0];
    EXPECT_EQ(sampler.num_computed_tokens() - before, 140 - 128 + 29);
    EXPECT_EQ(got.logprobs, trainer_logprobs(*decoder, joined(request.prompt, got.tokens), 140, 1));
  }
}

// One prompt, from which one request stays within 128 tokens and one may go beyond.
TEST(SharingOfPages, AreNotSharedAcrossTheLengthAtWhichLongropeTurnsKeysOtherwise) {
  TinyDecoder decoder({.longrope = 128});
  const std::vector<int32_t> prompt = some_prompt(100, 3);
  std::vector<Request> both;
  for (const int64_t count : {29, 30, 60})  // the decoder gets all but the last token
    both.push_back({prompt, {.max_tokens = count, .seed = 5}, -1, 7});
  const auto expect_the_trainers = [&](const Completion& got) {
    EXPECT_EQ(got.logprobs, trainer_logprobs(*decoder, joined(prompt, got.tokens), 100, 1));
  };
  Sampler alone(*decoder, {.kv_tokens = 2048});
  const auto want = generate(alone, without_version(both));
  for (const auto& completions : want) expect_the_trainers(completions[0]);
  EXPECT_NE(want[0][0].logprobs[0], want[1][0].logprobs[0]);
  EXPECT_EQ(want[1][0].logprobs[0], want[2][0].logprobs[0]);
  Sampler sampler(*decoder, {.kv_tokens = 2048, .prefill_tokens = 80});
  const auto computed = [&](const Request& request, size_t i) {
    const int64_t before = sampler.num_computed_tokens();
    expect_same(generate(sampler, {&request, 1})[0][0], want[i][0], std::to_string(i));
    return sampler.num_computed_tokens() - before;
  };
  EXPECT_EQ(computed(both[0], 0), 100 + 28);
  EXPECT_EQ(computed(both[1], 1), 100 + 29) << "another line";
  EXPECT_EQ(computed(both[2], 2), 100 - 64 + 59);
  EXPECT_EQ(computed(both[0], 0), 100 - 64 + 28);
  Sampler fresh(*decoder, {.kv_tokens = 2048, .prefill_tokens = 80});
  expect_all_same(generate(fresh, both), want, "at once");
  EXPECT_EQ(fresh.num_computed_tokens(), 2 * 100 + 28 + 29 + 59);
  Sampler tight(*decoder, {.kv_tokens = 64 * 5, .max_sequences = 3});
  expect_all_same(generate(tight, both), want, "tight");
}

TEST(SharingOfPages, AGroupComputesItsPromptOnce) {
  TinyDecoder decoder({});
  Sampler sampler(*decoder, {.kv_tokens = 4096});
  std::vector<Request> group;
  for (uint64_t i = 0; i < 8; ++i) {
    group.push_back({some_prompt(100, 4), {.max_tokens = 6, .seed = i}, -1, 7});
  }
  const auto got = generate(sampler, group);
  EXPECT_EQ(sampler.num_computed_tokens(), 100 + 8 * 5);
  Sampler alone(*decoder, {.kv_tokens = 4096});
  for (size_t i = 0; i < group.size(); ++i) {
    expect_same(got[i][0], generate(alone, {&group[i], 1})[0][0], std::to_string(i));
  }
}

// Three samples of a prompt that ends amid a page: two of them leave it.
TEST(SharingOfPages, ARankCopiesPagesOfItsOwnRequestsAlone) {
  TinyDecoder decoder({});
  std::vector<Request> requests;
  for (const unsigned i : {1, 2, 3})
    requests.push_back(
        {some_prompt(100, i), {.max_tokens = 6, .seed = i, .num_samples = 3}, -1, 7});
  Sampler alone(*decoder, {.kv_tokens = 4096});
  const auto want = generate(alone, requests);
  EXPECT_EQ(alone.num_copied_pages(), 6);
  const auto comms = mesh::thread_comms(2);
  std::vector<int64_t> copied(2);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      TinyDecoder of_rank({});
      Sampler sampler(*of_rank, {.kv_tokens = 4096}, {}, *comms[r]);
      const auto got = generate(sampler, requests);
      expect_all_same(got, want, "on two ranks");
      copied[r] = sampler.num_copied_pages();
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(copied, (std::vector<int64_t>{4, 2})) << "of two requests, and of one";
}

TEST(SharingOfPages, ChangedWeightsAreSeenAfterAReset) {
  TinyDecoder decoder({});
  Sampler sampler(*decoder, {.kv_tokens = 4096});
  const Request request{some_prompt(150, 5), {.max_tokens = 8, .temperature = 0}, -1, 7};
  const auto before = generate(sampler, {&request, 1});
  const at::NoGradGuard no_grad;
  for (const model::NamedWeight& w : decoder->weights()) w.value->mul_(0.9);
  Sampler fresh(*decoder, {.kv_tokens = 4096});
  const auto want = generate(fresh, {&request, 1});
  EXPECT_NE(want[0][0].logprobs, before[0][0].logprobs);
  sampler.reset_prefix_cache();
  const int64_t computed = sampler.num_computed_tokens();
  expect_same(generate(sampler, {&request, 1})[0][0], want[0][0], "after the reset");
  EXPECT_EQ(sampler.num_computed_tokens() - computed, 150 + 7);
}

// Requests come and go at random, at every point of their way.
TEST(SharingOfPages, CancellingAtAnyPointFreesEveryPageAndChangesNoOtherRequest) {
  TinyDecoder decoder({.num_layers = 1});
  const std::vector<Request> kinds = related_requests(7);
  Sampler alone(*decoder, {.kv_tokens = 4096});
  const auto want = generate(alone, without_version(kinds));
  std::mt19937 random(6);
  Sampler sampler(*decoder, {.kv_tokens = 64 * 20, .max_sequences = 8, .prefill_tokens = 90});
  std::map<int64_t, size_t> live;  // ticket: kind
  size_t checked = 0, cancelled = 0;
  for (int step = 0; step < 600; ++step) {
    if (random() % 3 == 0 && live.size() < 12) {
      const size_t kind = random() % kinds.size();
      Request request = kinds[kind];
      request.version = random() % 3;
      live.emplace(sampler.add(std::move(request)), kind);
    }
    if (random() % 6 == 0 && !live.empty()) {
      const auto gone = std::next(live.begin(), static_cast<ptrdiff_t>(random() % live.size()));
      EXPECT_TRUE(sampler.cancel(gone->first));
      live.erase(gone);
      ++cancelled;
      if (live.empty()) {
        EXPECT_EQ(sampler.num_free_pages(), 20);
      }
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
  for (const auto& [ticket, kind] : live) EXPECT_TRUE(sampler.cancel(ticket));
  EXPECT_EQ(sampler.num_sequences(), 0);
  EXPECT_EQ(sampler.num_free_pages(), 20);
  EXPECT_FALSE(sampler.step());
  EXPECT_GT(checked, 30u);
  EXPECT_GT(cancelled, 60u);
}

}  // namespace
}  // namespace twinkle::sampler
