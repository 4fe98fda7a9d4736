#include "twinkle/base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>

#include "twinkle/base/error_for_test.h"

namespace twinkle {
namespace {

TEST(ParallelRanges, CoverEveryIndexOnce) {
  for (const int64_t n : {0, 1, 7, 1000}) {
    std::vector<std::atomic<int>> times(n);
    parallel_ranges(n, 3, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++times[i];
    });
    for (const auto& count : times) EXPECT_EQ(count, 1);
  }
}

TEST(ParallelRanges, EndWhenTheCallersInterruptIsAskedFor) {
  const auto caller = std::this_thread::get_id();
  Interrupt interrupt([&] { return std::this_thread::get_id() == caller; });
  const auto forever = [](int64_t, int64_t) {
    for (;;) Interrupt::check();
  };
  EXPECT_THROW(parallel_ranges(8, 1, forever), Interrupted);
  EXPECT_THROW(parallel_ranges(1, 1, forever), Interrupted);
}

TEST(ParallelRanges, AreNotInterruptedWithoutOne) {
  {
    const Interrupt gone([] { return true; });
  }
  parallel_ranges(8, 1, [](int64_t, int64_t) { Interrupt::check(); });
}

TEST(ParallelRanges, TheErrorOfTheLowestIndexIsTheOneThatArrives) {
  for (int round = 0; round < 20; ++round) {
    EXPECT_EQ(error_of([] {
                parallel_ranges(1000, 1, [](int64_t begin, int64_t end) {
                  for (int64_t i = begin; i < end; ++i)
                    require(i % 300 != 299, Code::kInvalid, "base: bad ", i);
                });
              }),
              "base: bad 299");
  }
}

}  // namespace
}  // namespace twinkle
