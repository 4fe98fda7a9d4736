// Sequences that give their places to other tenants, over a decoder: they keep their bits.
#include <gtest/gtest.h>

#include <map>

#include "twinkle/sampler/requests_for_test.h"
#include "twinkle/sampler/sampler.h"
#include "twinkle/sampler/tiny_decoder_for_test.h"

namespace twinkle::sampler {
namespace {

Decode letters() {
  return [](std::span<const int32_t> ids) {
    std::string text;
    for (const int32_t id : ids) text += static_cast<char>('a' + id % 26);
    return text;
  };
}

// One tenant's, with each kind of thing that a sequence knows of its tokens so far.
std::vector<Request> hogs_requests(uint64_t version) {
  std::vector<Request> out;
  for (unsigned i = 0; i < 4; ++i) {
    SamplingParams params{.max_tokens = 90, .seed = i, .num_samples = 1 + i % 3};
    params.temperature = i == 3 ? 0 : 0.9;
    params.repetition_penalty = i == 1 ? 1.3 : 1;
    params.top_logprobs = i == 2 ? 3 : 0;
    params.prompt_logprobs = i == 2;
    params.stop = {"zzz", std::string(1, static_cast<char>('a' + i)) + "b"};
    out.push_back({some_prompt(20 + 50 * i, i), params, -1, version, true, "hog"});
  }
  return out;
}

struct Got {
  std::map<int64_t, Outcome> outcomes;
  std::map<std::pair<int64_t, int64_t>, std::vector<int32_t>> streamed;
  int64_t num_computed = 0;
};

// With `guests`, other tenants' short samples come between the steps.
Got run(model::Decoder& decoder, const SamplerOptions& options, uint64_t version, bool guests) {
  Sampler sampler(decoder, options);
  Got out;
  const std::vector<Request> requests = hogs_requests(version);
  for (const Request& request : requests) sampler.add(request, letters());
  for (int step = 0; sampler.step(); ++step) {
    for (const Event& e : sampler.take_events()) {
      if (e.ticket < std::ssize(requests)) out.streamed[{e.ticket, e.sample}].push_back(e.token);
    }
    for (Outcome& outcome : sampler.take_outcomes()) {
      if (outcome.ticket < std::ssize(requests)) out.outcomes[outcome.ticket] = std::move(outcome);
    }
    if (!guests || step % 7 != 3) continue;
    Request guest{some_prompt(10 + step % 60, 9), {.max_tokens = 2}, -1, version};
    guest.owner = std::to_string(step);
    sampler.add(guest);
  }
  out.num_computed = sampler.num_computed_tokens();
  return out;
}

class GivingWay : public testing::TestWithParam<TinyOptions> {};

INSTANTIATE_TEST_SUITE_P(EachKind, GivingWay,
                         testing::Values(TinyOptions{}, TinyOptions{.dtype = at::kBFloat16},
                                         TinyOptions{.family = "qwen3", .delta = true}),
                         [](const auto& info) {
                           return info.param.delta ? std::string("delta")
                                                   : c10::toString(info.param.dtype);
                         });

TEST_P(GivingWay, ChangesNoTokenNoLogprobNoEndAndNothingThatIsStreamed) {
  TinyDecoder decoder(GetParam());
  const Got alone = run(*decoder, {.kv_tokens = 1 << 14}, 0, false);
  ASSERT_EQ(alone.outcomes.size(), 4u);
  for (const uint64_t version : {0, 1}) {
    const Got among = run(*decoder, {.kv_tokens = 1 << 14, .max_sequences = 3}, version, true);
    for (const auto& [ticket, want] : alone.outcomes) {
      const Outcome& got = among.outcomes.at(ticket);
      EXPECT_EQ(got.error, "");
      EXPECT_EQ(got.completions, want.completions) << "version " << version << ", " << ticket;
      EXPECT_EQ(got.prompt, want.prompt);
      for (int64_t s = 0; s < std::ssize(got.completions); ++s) {
        EXPECT_EQ(among.streamed.at({ticket, s}), got.completions[static_cast<size_t>(s)].tokens);
      }
    }
    if (version == 0) {
      EXPECT_GT(among.num_computed, alone.num_computed * 2) << "they gave way, often";
    }
  }
}

}  // namespace
}  // namespace twinkle::sampler
