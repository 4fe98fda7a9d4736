#include "twinkle/text/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
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

// As many rows as there are cores, none of which ends before all have begun.
TEST(ForEachRow, WorksOnOneRowForEveryCoreAtTheSameTime) {
  const size_t cores = std::max(1u, std::thread::hardware_concurrency());
  std::mutex mutex;
  std::condition_variable all_there;
  std::set<std::thread::id> threads;
  for_each_row(cores, [&](size_t) {
    std::unique_lock lock(mutex);
    threads.insert(std::this_thread::get_id());
    all_there.notify_all();
    all_there.wait_for(lock, std::chrono::seconds(20), [&] { return threads.size() == cores; });
  });
  EXPECT_EQ(threads.size(), cores);
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

TEST(WithoutFolder, TakesOffTheFolderAlone) {
  EXPECT_EQ(without_folder("text: row 1: bad"), "row 1: bad");
  for (const char* text : {"", "text", "row 1: bad", ": bad", "text:bad", "Key: bad"})
    EXPECT_EQ(without_folder(text), text);
}

TEST(ForEachRow, LetsOtherExceptionsThrough) {
  EXPECT_THROW(for_each_row(3, [](size_t) { throw std::bad_alloc(); }), std::bad_alloc);
}

}  // namespace
}  // namespace twinkle::text
