#include "twinkle/text/rows.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "twinkle/text/tiny_model_test.h"

namespace twinkle::text {
namespace {

TEST(ForEachRow, WorksOnEachRowOnce) {
  std::vector<std::atomic<int>> times(1000);
  for_each_row(times.size(), [&](size_t row) { ++times[row]; });
  for (const auto& n : times) EXPECT_EQ(n, 1);
  for_each_row(0, [](size_t) { FAIL(); });
}

TEST(ForEachRow, ReportsTheLowestFailingRowWithItsCauseAndCode) {
  for (int round = 0; round < 20; ++round) {
    const auto work = [](size_t row) {
      require(row < 30, Code::kNotFound, "text: number ", row, " is too high");
    };
    try {
      for_each_row(500, work);
      FAIL();
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "text: row 30: number 30 is too high");
      EXPECT_EQ(error.code, Code::kNotFound);
    }
  }
}

TEST(ForEachRow, LetsOtherExceptionsThrough) {
  EXPECT_THROW(for_each_row(3, [](size_t) { throw std::bad_alloc(); }), std::bad_alloc);
}

}  // namespace
}  // namespace twinkle::text
