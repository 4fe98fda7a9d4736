// Tokens of the sampler as they come.
#include <gtest/gtest.h>

#include <map>

#include "twinkle/sampler/requests_for_test.h"
#include "twinkle/sampler/sampler.h"
#include "twinkle/sampler/tiny_decoder_for_test.h"

namespace twinkle::sampler {
namespace {

Decode numbers() {
  return [](std::span<const int32_t> ids) {
    std::string text;
    for (const int32_t id : ids) text.append("<").append(std::to_string(id)).append(">");
    return text;
  };
}

struct Streamed {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<TopLogprobs> top_logprobs;
  std::string stop_reason;
};

// Steps to the end; what has been given out by ticket and sample.
std::map<std::pair<int64_t, int64_t>, Streamed> drain(Sampler& sampler) {
  std::map<std::pair<int64_t, int64_t>, Streamed> out;
  while (sampler.step()) {
    for (const Event& event : sampler.take_events()) {
      Streamed& to = out[{event.ticket, event.sample}];
      to.tokens.push_back(event.token);
      to.logprobs.push_back(event.logprob);
      if (!event.top_logprobs.empty()) to.top_logprobs.push_back(event.top_logprobs);
      EXPECT_EQ(to.stop_reason, "") << "it comes with the last one";
      to.stop_reason = event.stop_reason;
    }
  }
  return out;
}

TEST(Events, AreTheTokensOfEverySampleInOrderAndOfRequestsThatStreamAlone) {
  TinyDecoder decoder({});
  Sampler sampler(*decoder, {.kv_tokens = 4096});
  std::vector<Request> requests = mixed_requests();
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].stream = i % 3 != 2;
    requests[i].params.top_logprobs = i % 2 == 0 ? 3 : 0;
    sampler.add(requests[i]);
  }
  auto streamed = drain(sampler);
  for (const Outcome& outcome : sampler.take_outcomes()) {
    const bool stream = requests[static_cast<size_t>(outcome.ticket)].stream;
    for (int64_t s = 0; s < std::ssize(outcome.completions); ++s) {
      const Completion& completion = outcome.completions[static_cast<size_t>(s)];
      const Streamed got = streamed[{outcome.ticket, s}];
      EXPECT_EQ(got.tokens, stream ? completion.tokens : std::vector<int32_t>{});
      EXPECT_EQ(got.logprobs, stream ? completion.logprobs : std::vector<float>{});
      EXPECT_EQ(got.top_logprobs, stream ? completion.top_logprobs : std::vector<TopLogprobs>{});
      EXPECT_EQ(got.stop_reason, stream ? completion.stop_reason : "");
    }
  }
}

TEST(Events, ComeWithTheStepThatMakesThem) {
  TinyDecoder decoder({});
  Sampler sampler(*decoder, {.kv_tokens = 1024});
  const int64_t ticket =
      sampler.add({.prompt = some_prompt(10, 1),
                   .params = {.max_tokens = 5, .temperature = 0, .logprobs = false},
                   .stream = true});
  for (int i = 0; i < 5; ++i) {
    sampler.step();
    const std::vector<Event> events = sampler.take_events();
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].ticket, ticket);
    EXPECT_EQ(events[0].logprob, 0);
    EXPECT_EQ(sampler.take_outcomes().size(), i == 4 ? 1u : 0u);
  }
}

TEST(Events, HoldNothingThatMayBecomePartOfAStopString) {
  TinyDecoder decoder({});
  Sampler sampler(*decoder, {.kv_tokens = 1024});
  Request request{some_prompt(10, 8), {.max_tokens = 30, .seed = 3}};
  request.stream = true;
  const std::vector<int32_t> all = generate(sampler, {&request, 1}, numbers())[0][0].tokens;
  const auto text = [](int32_t id) { return numbers()({&id, 1}); };
  // Ends at token 12; token 11 is what it begins in.
  request.params.stop = {numbers()(std::span(all).subspan(11, 2))};
  sampler.add(request, numbers());
  std::vector<Event> seen;
  for (size_t i = 0; sampler.step(); ++i) {
    for (const Event& event : sampler.take_events()) seen.push_back(event);
    EXPECT_EQ(seen.size(), i < 11 ? i + 1 : i < 12 ? 11u : 13u) << i;
  }
  const Outcome outcome = sampler.take_outcomes()[0];
  EXPECT_EQ(outcome.completions[0].matched, request.params.stop[0]);
  EXPECT_EQ(outcome.completions[0].tokens.size(), 13u);
  for (size_t i = 0; i < 13; ++i) EXPECT_EQ(seen[i].token, all[i]);
  EXPECT_EQ(seen[11].stop_reason + "," + seen[12].stop_reason, ",stop");
  // A beginning that is not continued comes one step later; one at the end comes with the end.
  request.params.stop = {text(all[5]).append("no"), text(all[29]).append("no")};
  sampler.add(request, numbers());
  size_t given = 0;
  for (size_t i = 0; sampler.step(); ++i) {
    given += sampler.take_events().size();
    const bool held = i < 29 && (all[i] == all[5] || all[i] == all[29]);
    EXPECT_EQ(given, i + (held ? 0 : 1)) << i;
  }
  EXPECT_EQ(given, 30u);
}

TEST(Events, OfASampleThatEndsWithAStopStringComeWithItsEndThoughOthersGoOn) {
  TinyDecoder decoder({});
  Sampler sampler(*decoder, {.kv_tokens = 1024});
  Request request{some_prompt(10, 8), {.max_tokens = 30, .seed = 3, .num_samples = 2}};
  request.params.ignore_eos = true;
  request.stream = true;
  const auto all = generate(sampler, {&request, 1}, numbers())[0];
  request.params.stop = {numbers()(std::span(all[0].tokens).subspan(4, 2))};
  sampler.add(request, numbers());
  std::map<int64_t, std::string> ended;  // by sample
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(sampler.step());
    for (const Event& event : sampler.take_events()) ended[event.sample] = event.stop_reason;
  }
  EXPECT_EQ(ended[0], "stop");
  EXPECT_EQ(ended[1], "");
  EXPECT_TRUE(sampler.take_outcomes().empty()) << "the other one goes on";
}

TEST(Events, OfARequestThatIsCancelledAreDropped) {
  TinyDecoder decoder({});
  Sampler sampler(*decoder, {.kv_tokens = 1024});
  Request request{some_prompt(10, 2), {.max_tokens = 9}};
  request.stream = true;
  const int64_t gone = sampler.add(request), stays = sampler.add(request);
  sampler.step();
  sampler.cancel(gone);
  const std::vector<Event> events = sampler.take_events();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].ticket, stays);
  EXPECT_EQ(drain(sampler).size(), 1u);
}

// Adds all of them and steps to the end; returns how many steps ran out of memory.
int run_through(Sampler& sampler, const std::vector<Request>& requests, const Decode& decode) {
  for (const Request& request : requests) sampler.add(request, decode);
  int thrown = 0;
  for (bool more = true; more;) {
    try {
      more = sampler.step();
    } catch (const std::bad_alloc&) {
      ++thrown;
    }
  }
  return thrown;
}

void expect_same_events(const std::vector<Completion>& got, const std::vector<Completion>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t s = 0; s < want.size(); ++s) {
    EXPECT_EQ(got[s].tokens, want[s].tokens) << s;
    EXPECT_EQ(got[s].logprobs, want[s].logprobs) << s;
    EXPECT_EQ(got[s].stop_reason, want[s].stop_reason) << s;
  }
}

TEST(Sampler, AStepThatThrowsLosesNoTokensWhicheverTokenItWas) {
  TinyDecoder decoder({});
  std::vector<Request> requests = mixed_requests();
  requests[0].params.stop = {"never"};
  int calls = 0, fails_at = 0;
  const Decode broken = [&](std::span<const int32_t> ids) {
    if (++calls == fails_at) throw std::bad_alloc();
    return numbers()(ids);
  };
  Sampler whole(*decoder, {.kv_tokens = 4096});
  const auto expected = generate(whole, requests, broken);
  const int all_calls = calls;
  ASSERT_GT(all_calls, 2);
  for (int at = 1; at <= all_calls; ++at) {
    SCOPED_TRACE(at);
    calls = 0, fails_at = at;
    Sampler sampler(*decoder, {.kv_tokens = 4096});
    EXPECT_EQ(run_through(sampler, requests, broken), 1);
    const auto outcomes = sampler.take_outcomes();
    ASSERT_EQ(outcomes.size(), requests.size());
    for (const Outcome& outcome : outcomes)
      expect_same_events(outcome.completions, expected[static_cast<size_t>(outcome.ticket)]);
  }
}

TEST(Sampler, ADecodeThatThrowsFailsItsRequestAlone) {
  TinyDecoder decoder({});
  std::vector<Request> requests = mixed_requests();
  requests[0].params.stop = {"never"};
  Sampler whole(*decoder, {.kv_tokens = 4096});
  const auto expected = generate(whole, requests, numbers());
  Sampler sampler(*decoder, {.kv_tokens = 4096});
  const Decode broken = [](std::span<const int32_t>) -> std::string {
    throw std::runtime_error("no such token");
  };
  EXPECT_EQ(run_through(sampler, requests, broken), 0);
  const auto outcomes = sampler.take_outcomes();
  ASSERT_EQ(outcomes.size(), requests.size());
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, outcome.ticket == 0 ? "no such token" : "");
    if (outcome.ticket > 0)
      expect_same_events(outcome.completions, expected[static_cast<size_t>(outcome.ticket)]);
  }
}

}  // namespace
}  // namespace twinkle::sampler
