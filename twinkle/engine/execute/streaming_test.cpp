// Samples that tell their tokens as they come, each with its own tokenizer; and what the cache of
// their prompts remembers.
#include <gtest/gtest.h>

#include <thread>
#include <type_traits>

#include "twinkle/engine/operations_for_test.h"
#include "twinkle/engine/stream/recording_listener_for_test.h"
#include "twinkle/engine/stream/token_queue.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::engine {
namespace {

// Writes token 7 as "<7>", or with other brackets.
auto numbers_between(const std::string& open, const std::string& close) {
  return [open, close](std::span<const int32_t> ids) {
    std::string text;
    for (const int32_t id : ids) text += open + std::to_string(id) + close;
    return text;
  };
}

// The decoder of a tokenizer that is named by its brackets.
Decode of_brackets(const std::string& tokenizer) {
  if (tokenizer == "none") return {};
  if (tokenizer == "broken")
    return [](std::span<const int32_t>) -> std::string { fail(Code::kInvalid, "no text"); };
  if (tokenizer == "first")
    return [](std::span<const int32_t> ids) -> std::string {
      throw std::runtime_error("token " + std::to_string(ids.front()));
    };
  require(tokenizer.size() == 2, Code::kNotFound, "no tokenizer at '", tokenizer, "'");
  return numbers_between(tokenizer.substr(0, 1), tokenizer.substr(1));
}

Sample drawn_sample(const std::string& tenant, int64_t max_tokens, int64_t num_samples = 1) {
  Sample out{.tenant = tenant, .params = {{}}};
  for (uint64_t i = 0; i < 3; ++i) out.prompts.push_back(drawn(i + 50, 4 + i).input_ids);
  out.params[0].max_tokens = max_tokens;
  out.params[0].seed = 9;
  out.params[0].num_samples = num_samples;
  out.params[0].ignore_eos = true;
  return out;
}

class Streaming : public testing::Test {
 protected:
  Streaming() : engine_({.model = {.path = model_.path(), .mixed_precision = "no"}}, of_brackets) {
    engine_.run<Done>(Create{.tenant = "base", .frozen = true});
  }
  const model::TinyModel model_;
  Engine engine_;
};

TEST_F(Streaming, TellsTheTokensOfTheResultInOrderAndTheReasonWithTheLast) {
  const Sample sample = drawn_sample("base", 12, 2);
  const auto want = engine_.run<SampleResult>(sample);
  RecordingListener listener, other;
  auto first = engine_.submit(sample, listener.hooks()),
       second = engine_.submit(sample, other.hooks());
  for (Future* future : {&first, &second}) {
    const auto result = std::get<SampleResult>(future->get());
    EXPECT_EQ(result.completions[2][1].tokens, want.completions[2][1].tokens);
  }
  EXPECT_EQ(listener.difference(want), "");
  EXPECT_EQ(other.difference(want), "");
  EXPECT_EQ(listener.num_tokens(), 3u * 2 * 12);
}

// The second is computed steps before the first, and the third never needs to be.
TEST_F(Streaming, OfSeveralPromptsThatFailTheFirstInTheirOrderIsNamed) {
  Engine engine(
      {.model = {.path = model_.path(), .mixed_precision = "no"}, .sampler = {.prefill_tokens = 8}},
      of_brackets);
  engine.run<Done>(Create{.tenant = "base", .frozen = true});
  Sample sample{.tenant = "base", .params = {{}}, .tokenizer = "<>"};
  for (const size_t length : {60, 3, 90}) sample.prompts.push_back(drawn(length, length).input_ids);
  sample.params[0].max_tokens = 4;
  sample.params[0].stop = {"x"};
  sample.params[0].temperature = 0;
  const auto want = engine.run<SampleResult>(sample).completions;
  const int32_t first = want[0][0].tokens[0], second = want[1][0].tokens[0];
  ASSERT_NE(first, second);
  sample.tokenizer = "first";
  EXPECT_EQ(error_of([&] { engine.submit(sample).get(); }), "token " + std::to_string(first));
  EXPECT_EQ(engine.sampling().num_samples, 0);
}

TEST_F(Streaming, StopStringsAreFoundInTheTextOfTheSamplesOwnTokenizer) {
  Sample sample = drawn_sample("base", 20);
  const auto free = engine_.run<SampleResult>(sample).completions;
  const auto word = [](const char* open, int32_t id, const char* close) {
    return open + std::to_string(id) + close;
  };
  // Both ask for all four words, and each finds those of its own brackets.
  const int32_t at3 = free[0][0].tokens[3], at8 = free[0][0].tokens[8];
  RecordingListener listener, other;
  sample.prompts.resize(1);
  Sample round = sample, square = sample;
  round.params[0].stop = {word("(", at3, ")") + "(", word("[", at8, "]")};
  square.params[0].stop = {word("(", at8, ")"), word("[", at3, "]")};
  round.tokenizer = "()";
  square.tokenizer = "[]";
  auto a = engine_.submit(round, listener.hooks());
  auto b = engine_.submit(square, other.hooks());
  const auto first = std::get<SampleResult>(a.get()), second = std::get<SampleResult>(b.get());
  EXPECT_EQ(first.completions[0][0].matched, round.params[0].stop[0]);
  EXPECT_EQ(second.completions[0][0].matched, square.params[0].stop[1]);
  EXPECT_EQ(second.completions[0][0].tokens.size(), 4u);
  EXPECT_EQ(listener.difference(first), "");
  EXPECT_EQ(other.difference(second), "");
  round.tokenizer = "none";
  EXPECT_NE(error_of([&] { engine_.run<SampleResult>(round); }).find("no tokenizer"),
            std::string::npos);
  round.tokenizer = "elsewhere";
  EXPECT_EQ(error_of([&] { engine_.submit(round); }), "no tokenizer at 'elsewhere'");
  EXPECT_EQ(engine_.stats().num_queued, 0);
}

TEST_F(Streaming, AListenerThatThrowsFailsItsOwnSampleWheneverItDoes) {
  const Sample sample = drawn_sample("base", 6);
  const auto want = engine_.run<SampleResult>(sample).completions;
  for (const size_t deaf_from : {size_t{1}, size_t{9}, size_t{18}}) {  // 18: with the last token
    SCOPED_TRACE(deaf_from);
    RecordingListener listener;
    size_t told = 0;
    SampleHooks hooks;
    hooks.on_tokens = [&](std::span<const TokenEvent> events) {
      told += events.size();
      if (told >= deaf_from) throw std::runtime_error("deaf");
    };
    Future deaf = engine_.submit(sample, hooks);
    Future neighbour = engine_.submit(sample, listener.hooks());
    EXPECT_THROW(deaf.get(), std::runtime_error);
    const auto got = std::get<SampleResult>(neighbour.get());
    for (size_t p = 0; p < want.size(); ++p)
      EXPECT_EQ(got.completions[p][0].tokens, want[p][0].tokens);
    EXPECT_EQ(listener.difference(got), "");
  }
  EXPECT_EQ(engine_.sampling().num_samples, 0);
}

TEST_F(Streaming, ADecodeThatThrowsFailsItsOwnSample) {
  Sample broken = drawn_sample("base", 20);
  broken.params[0].stop = {"never"};
  const Sample sample = drawn_sample("base", 20);
  const auto want = engine_.run<SampleResult>(sample).completions;
  broken.tokenizer = "broken";
  Future first = engine_.submit(broken);
  Future neighbour = engine_.submit(sample);
  EXPECT_EQ(error_of([&] { first.get(); }), "no text");
  EXPECT_EQ(std::get<SampleResult>(neighbour.get()).completions[2][0].tokens, want[2][0].tokens);
}

TEST_F(Streaming, NothingComesAfterACancelAndTheListenerIsLetGo) {
  RecordingListener listener;
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> alive = held;
  SampleHooks hooks = listener.hooks();
  hooks.on_tokens = [listener = hooks.on_tokens, held](std::span<const TokenEvent> events) {
    listener(events);
  };
  Sample sample = drawn_sample("base", 200);
  Future future = engine_.submit(sample, hooks);
  hooks = {};
  held.reset();
  while (listener.num_tokens() < 3) std::this_thread::yield();
  EXPECT_TRUE(engine_.cancel(future.id));
  EXPECT_EQ(error_of([&] { future.get(); }), "engine: cancelled");
  const size_t heard = listener.num_tokens();
  EXPECT_LT(heard, 600u);
  EXPECT_TRUE(alive.expired());
  engine_.run<SampleResult>(drawn_sample("base", 3));
  EXPECT_EQ(listener.num_tokens(), heard);
}

TEST_F(Streaming, ClosingTheEngineEndsTheStream) {
  auto queue = std::make_shared<TokenQueue>();
  Future future =
      engine_.submit(drawn_sample("base", 200), {.on_tokens = TokenQueue::listener(queue)});
  std::vector<TokenEvent> events;
  EXPECT_FALSE(queue->take(60, events));
  engine_.close();
  EXPECT_EQ(error_of([&] { future.get(); }), "engine: closed");
  events.clear();
  EXPECT_TRUE(queue->take(0, events));
  EXPECT_LT(engine_.stats().num_steps, 200);
}

TEST_F(Streaming, TokensThatWereNotReadCountAsBytes) {
  auto queue = std::make_shared<TokenQueue>();
  const Sample sample = drawn_sample("base", 12, 2);
  Future future = engine_.submit(sample, {.on_tokens = TokenQueue::listener(queue)});
  future.wait();
  EXPECT_GE(engine_.stats().queued_bytes, 3 * 2 * 12 * int64_t{sizeof(TokenEvent)});
  auto of_reader = future.room;
  future.get();
  EXPECT_GE(engine_.stats().queued_bytes, 3 * 2 * 12 * int64_t{sizeof(TokenEvent)});
  of_reader.reset();
  EXPECT_EQ(engine_.stats().queued_bytes, 0);
}

// The report of an operation's end must not need memory.
TEST(SamplingStatistics, AreCopiedWithoutAllocating) {
  EXPECT_TRUE(std::is_nothrow_copy_assignable_v<SamplingStats>);
  EXPECT_TRUE(std::is_nothrow_move_assignable_v<SamplingStats>);
}

TEST_F(Streaming, ASampleThatFailsTellsItsListenerNothingMore) {
  Sample sample = drawn_sample("base", 5);
  sample.prompts[1] = {500};
  RecordingListener listener;
  Future future = engine_.submit(sample, listener.hooks());
  EXPECT_NE(error_of([&] { future.get(); }), "no error");
  EXPECT_EQ(listener.num_tokens(), 0u);
}

TEST_F(Streaming, ResetThePrefixCacheAndPromptsAreComputedAgain) {
  Sample sample = drawn_sample("base", 2);
  sample.prompts = {drawn(1, 130).input_ids};
  const auto computed = [&] {
    const int64_t before = engine_.sampling().num_computed_tokens;
    const auto result = engine_.run<SampleResult>(sample);
    return std::pair(engine_.sampling().num_computed_tokens - before, result.completions[0][0]);
  };
  const auto [first, want] = computed();
  EXPECT_EQ(first, 131);
  const auto [second, again] = computed();
  EXPECT_EQ(second, 131 - 128);
  EXPECT_EQ(engine_.sampling().num_shared_tokens, 128);
  engine_.reset_prefix_cache();
  const auto [third, fresh] = computed();
  EXPECT_EQ(third, 131);
  EXPECT_EQ(engine_.sampling().num_shared_tokens, 128);
  EXPECT_EQ(fresh.tokens, want.tokens);
  EXPECT_EQ(again.logprobs, want.logprobs);
}

TEST_F(Streaming, StatisticsSayWhatRunsAndWhatTheCacheHolds) {
  EXPECT_EQ(engine_.sampling().num_pages, 0);
  Future future = engine_.submit(drawn_sample("base", 200));
  while (engine_.sampling().num_sequences < 3) std::this_thread::yield();
  const SamplingStats running = engine_.sampling();
  EXPECT_EQ(running.num_samples, 1);
  EXPECT_LE(running.num_free_pages, running.num_pages - 3);
  future.get();
  const SamplingStats after = engine_.sampling();
  EXPECT_EQ(after.num_samples + after.num_sequences, 0);
  EXPECT_EQ(after.num_free_pages, after.num_pages);
  EXPECT_EQ(after.num_pages * after.page_tokens, EngineOptions{}.sampler.kv_tokens);
}

}  // namespace
}  // namespace twinkle::engine
