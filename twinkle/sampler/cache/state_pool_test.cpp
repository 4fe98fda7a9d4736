#include "twinkle/sampler/cache/state_pool.h"

#include <gtest/gtest.h>

#include <cstring>

namespace twinkle::sampler {
namespace {

StateLayout layout() {
  StateLayout out;
  out.add(100, 40);
  out.add(0, 0);
  out.add(64, 64);
  return out;
}

TEST(StateLayout, PartsAreAlignedAndALayerMayHaveNone) {
  const StateLayout l = layout();
  EXPECT_EQ(l.layers[2].offset, 128);
  EXPECT_EQ(l.size, 192);
  EXPECT_EQ(l.closed, 104);
  EXPECT_EQ(l.num_bytes(10), 2960);
  EXPECT_TRUE(StateLayout().empty());
}

TEST(StatePool, GivesEachSlotOnceAndTakesItBack) {
  StatePool pool(layout(), 2);
  StatePool::Slot a = pool.take();
  {
    const StatePool::Slot b = pool.take();
    EXPECT_EQ(std::abs(a.data() - b.data()), 192);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % 64, 0u);
    EXPECT_FALSE(pool.take());
  }
  EXPECT_EQ(pool.num_free(), 1);
  StatePool::Slot moved = std::move(a);
  a = {};
  EXPECT_EQ(pool.num_free(), 1);
  moved = {};
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(moved.data(), nullptr);
}

TEST(StatePool, WithoutALayoutThereAreNoSlots) {
  StatePool pool(StateLayout(), 5);
  EXPECT_FALSE(pool.take());
}

TEST(Snapshots, HoldTheClosedPartsAndForgetTheOneUsedLongestAgo) {
  StatePool pool(layout(), 2);
  StatePool::Slot from = pool.take(), to = pool.take();
  Snapshots snapshots(layout(), 2);
  const auto keep = [&](uint64_t id, int fill) {
    std::memset(from.data(), fill, 192);
    snapshots.keep(id, from.data());
  };
  keep(1, 1);
  keep(1, 9);
  keep(2, 2);
  std::memset(to.data(), 7, 192);
  snapshots.load(1, to.data());
  const auto byte = [&](int64_t i) { return static_cast<int>(to.data()[i]); };
  EXPECT_EQ(byte(0), 1) << "the first that was kept";
  EXPECT_EQ(byte(39), 1);
  EXPECT_EQ(byte(40), 7);
  EXPECT_EQ(byte(127), 7);
  EXPECT_EQ(byte(128), 1);
  EXPECT_EQ(byte(191), 1);
  keep(3, 3);
  EXPECT_TRUE(snapshots.contains(1) && !snapshots.contains(2) && snapshots.contains(3));
  EXPECT_EQ(snapshots.size(), 2);
  snapshots.clear();
  EXPECT_FALSE(snapshots.contains(1));
}

}  // namespace
}  // namespace twinkle::sampler
