#include "twinkle/server/history/number_set.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <set>

namespace twinkle::server {
namespace {

TEST(NumberSet, HasWhatWasInsertedInAnyOrderAndIsAsLargeAsItsGaps) {
  std::mt19937 random(1);
  for (int round = 0; round < 100; ++round) {
    NumberSet numbers;
    std::set<int64_t> expected;
    for (int i = 0; i < 40; ++i) {
      const auto number = static_cast<int64_t>(random() % 50) - 5;
      numbers.insert(number);
      expected.insert(number);
    }
    const NumberSet again(numbers.ranges());
    size_t num_ranges = 0;
    for (int64_t n = -7; n < 50; ++n) {
      EXPECT_EQ(numbers.contains(n), expected.contains(n)) << n;
      EXPECT_EQ(again.contains(n), expected.contains(n)) << n;
      num_ranges += expected.contains(n) && !expected.contains(n - 1);
    }
    EXPECT_EQ(numbers.ranges().size(), 2 * num_ranges);
  }
}

TEST(NumberSet, TakesTheLargestAndTheSmallest) {
  NumberSet numbers;
  using Limits = std::numeric_limits<int64_t>;
  for (const int64_t n : {Limits::max(), Limits::min(), Limits::max() - 1, Limits::min() + 1})
    numbers.insert(n);
  EXPECT_EQ(numbers.ranges(), (std::vector<int64_t>{Limits::min(), Limits::min() + 1,
                                                    Limits::max() - 1, Limits::max()}));
}

}  // namespace
}  // namespace twinkle::server
