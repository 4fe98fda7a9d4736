#include "twinkle/engine/checkpoint/kept_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

namespace twinkle::engine {
namespace {

TEST(KeptMemory, ABlockThatWasGivenBackIsTakenAgainForWhatFitsIt) {
  KeptMemory memory(1000);
  std::byte* first = nullptr;
  {
    const auto block = memory.take(400);
    first = block.get();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0U);
    std::memset(first, 1, 400);
    EXPECT_EQ(memory.num_used(), 400);
    EXPECT_NE(memory.take(400).get(), first) << "it is in use";
  }
  EXPECT_EQ(memory.num_used(), 0);
  EXPECT_EQ(memory.num_kept(), 800);
  const auto again = memory.take(300), other = memory.take(300), third = memory.take(300);
  EXPECT_EQ(memory.num_used(), 400 + 400 + 300);
  EXPECT_EQ(memory.num_kept(), 0);
}

TEST(KeptMemory, NoMoreIsKeptThanTheLimitAndWhatWaitedLongestGoesFirst) {
  KeptMemory memory(1000);
  memory.take(1001).reset();
  EXPECT_EQ(memory.num_kept(), 0) << "too large to wait for anybody";
  auto a = memory.take(600), b = memory.take(500), c = memory.take(400);
  a.reset();
  b.reset();
  EXPECT_EQ(memory.num_kept(), 500);
  c.reset();
  EXPECT_EQ(memory.num_kept(), 900);
  a = memory.take(100);
  EXPECT_EQ(memory.num_kept(), 500) << "of the two the one of 400 fits better";
}

TEST(KeptMemory, ASmallCopyDoesNotTakeABlockThatIsFarTooLarge) {
  KeptMemory memory(10'000);
  memory.take(5000).reset();
  const auto small = memory.take(100);
  EXPECT_EQ(memory.num_used(), 100);
  EXPECT_EQ(memory.num_kept(), 5000);
}

}  // namespace
}  // namespace twinkle::engine
