#include "twinkle/engine/stream/token_queue.h"

#include <gtest/gtest.h>

#include <thread>

namespace twinkle::engine {
namespace {

TEST(TokenQueue, AReaderGetsEveryTokenInOrderWhileAnotherThreadGivesThem) {
  constexpr int32_t kTokens = 20000;
  const auto queue = std::make_shared<TokenQueue>();
  std::thread sampler([listener = TokenQueue::listener(queue)]() mutable {
    for (int32_t i = 0; i < kTokens; i += 2) {
      const TokenEvent events[] = {{.token = i}, {.token = i + 1}};
      listener(events);
    }
    listener = {};
  });
  std::vector<int32_t> seen;
  for (bool over = false; !over;) {
    std::vector<TokenEvent> events;
    over = queue->take(60, events);
    for (const TokenEvent& e : events) seen.push_back(e.token);
  }
  sampler.join();
  ASSERT_EQ(seen.size(), static_cast<size_t>(kTokens));
  for (int32_t i = 0; i < kTokens; ++i) ASSERT_EQ(seen[static_cast<size_t>(i)], i);
}

TEST(TokenQueue, EndsWithTheLastCopyOfItsListenerAndKeepsWhatWasNotRead) {
  const auto queue = std::make_shared<TokenQueue>();
  std::vector<TokenEvent> events;
  {
    auto listener = TokenQueue::listener(queue);
    const auto copy = std::exchange(listener, {});
    const TokenEvent one[] = {{.token = 7}};
    copy(one);
    EXPECT_FALSE(queue->take(60, events));
    EXPECT_EQ(events.size(), 1u);
    events.clear();
    EXPECT_FALSE(queue->take(0, events)) << "nothing has come, and it has not ended";
    EXPECT_TRUE(events.empty());
    copy(one);
  }
  EXPECT_TRUE(queue->take(60, events));
  EXPECT_EQ(events.size(), 1u);
}

TEST(TokenQueue, KeepsNothingForAReaderThatHasClosedIt) {
  const auto queue = std::make_shared<TokenQueue>();
  const auto listener = TokenQueue::listener(queue);
  const TokenEvent two[] = {{.token = 7}, {.token = 8}};
  listener(two);
  EXPECT_EQ(queue->close(), 2);
  listener(two);
  std::vector<TokenEvent> events;
  EXPECT_TRUE(queue->take(60, events)) << "it waits for no more";
  EXPECT_TRUE(events.empty());
}

}  // namespace
}  // namespace twinkle::engine
