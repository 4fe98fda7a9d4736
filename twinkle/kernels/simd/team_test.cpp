#include "twinkle/kernels/simd/team.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace twinkle::kernels {
namespace {

void expect_each_once(int64_t begin, int64_t end, int64_t grain) {
  std::vector<std::atomic<int>> visits(static_cast<size_t>(end));
  parallel_for(begin, end, grain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) ++visits[static_cast<size_t>(i)];
  });
  for (int64_t i = 0; i < end; ++i) {
    ASSERT_EQ(visits[static_cast<size_t>(i)], i >= begin ? 1 : 0) << i << " of " << end;
  }
}

TEST(ParallelFor, VisitsEachIndexOnceWithinATeamAndWithout) {
  const auto sizes = [] {
    for (const int64_t end : {0, 1, 2, 3, 17, 1000}) {
      for (const int64_t grain : {1, 7, 5000}) expect_each_once(0, end, grain);
    }
    expect_each_once(5, 90, 3);
  };
  sizes();
  with_team(sizes);
}

TEST(Team, ItsBodyKnowsThatItRunsInOne) {
  EXPECT_FALSE(in_team());
  with_team([] {
    EXPECT_EQ(in_team(), at::get_num_threads() > 1);
    parallel_for(0, 2, 1,
                 [](int64_t, int64_t) { EXPECT_FALSE(in_team()) << "a piece is no body"; });
    EXPECT_EQ(in_team(), at::get_num_threads() > 1);
  });
  EXPECT_FALSE(in_team());
}

TEST(Team, ManyShortLoopsOneAfterTheOtherAddUp) {
  std::vector<int64_t> sums(64, 0);
  with_team([&] {
    for (int round = 0; round < 3000; ++round) {
      parallel_for(0, std::ssize(sums), 1, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) sums[static_cast<size_t>(i)] += round;
      });
    }
  });
  EXPECT_EQ(sums, std::vector<int64_t>(64, 3000 * 2999 / 2));
}

TEST(Team, ALoopWithinALoopAndATeamWithinATeamRunToo) {
  std::atomic<int> count{0};
  with_team([&] {
    with_team([&] {
      parallel_for(0, 10, 1, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          parallel_for(0, 10, 1,
                       [&](int64_t lo, int64_t hi) { count += static_cast<int>(hi - lo); });
        }
      });
    });
  });
  EXPECT_EQ(count, 100);
}

TEST(Team, WhatIsFetchedAheadChangesNothing) {
  std::vector<int32_t> numbers(1 << 20, 1);
  std::atomic<int64_t> sum{0};
  will_read(numbers.data(), 4 << 20);
  with_team([&] {
    for (int round = 0; round < 20; ++round) {
      will_read(numbers.data() + (round << 10), 4 << 10);
      parallel_for(round << 10, (round + 1) << 10, 16, [&](int64_t first, int64_t last) {
        sum += std::accumulate(numbers.begin() + first, numbers.begin() + last, int64_t{0});
      });
    }
  });
  EXPECT_EQ(sum, 20 << 10);
}

TEST(Team, AnExceptionOfALoopOrOfTheBodyReachesTheCaller) {
  const auto text_of = [](const std::function<void()>& body) -> std::string {
    try {
      with_team(body);
    } catch (const std::runtime_error& e) {
      return e.what();
    }
    return "none";
  };
  EXPECT_EQ(text_of([] { throw std::runtime_error("body"); }), "body");
  for (const int64_t bad : {0, 99}) {
    EXPECT_EQ(text_of([&] {
                parallel_for(0, 100, 1, [&](int64_t first, int64_t last) {
                  if (first <= bad && bad < last) throw std::runtime_error("loop");
                });
              }),
              "loop");
  }
  EXPECT_EQ(text_of([] {}), "none");
}

}  // namespace
}  // namespace twinkle::kernels
