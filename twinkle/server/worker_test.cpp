#include "twinkle/server/worker.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/error_for_test.h"
#include "twinkle/server/service/loop_for_test.h"

namespace twinkle::server {
namespace {

TEST(Worker, DoesJobsInTheirOrderOnAThreadOfItsOwnAndTellsTheLoop) {
  LoopForTest loop;
  Worker worker;
  std::vector<int> done;
  std::thread::id thread;
  bool told = false;
  for (int i = 0; i < 3; ++i) worker.run([&, i] { done.push_back(i); });
  worker.run([&] { thread = std::this_thread::get_id(); }, loop,
             [&](const std::exception_ptr& error) { told = !error; });
  EXPECT_TRUE(loop.run_until([&] { return told; }));
  EXPECT_EQ(done, (std::vector<int>{0, 1, 2}));
  EXPECT_NE(thread, std::this_thread::get_id());
}

TEST(Worker, OwnersHaveTheirTurnsAndEachItsJobsInTheirOrder) {
  LoopForTest loop;
  Worker worker;
  std::promise<void> begun, go_on;
  std::vector<std::string> done;
  bool is_over = false;
  worker.run([&] {
    begun.set_value();
    go_on.get_future().wait();
  });
  begun.get_future().wait();
  for (const std::string job : {"a1", "a2", "a3", "b1", "b2", "c1"})
    worker.run([&done, job] { done.push_back(job); }, job.substr(0, 1));
  worker.run([] {}, loop, [&](const std::exception_ptr&) { is_over = true; }, "a");
  go_on.set_value();
  EXPECT_TRUE(loop.run_until([&] { return is_over; }));
  EXPECT_EQ(done, (std::vector<std::string>{"a1", "b1", "c1", "a2", "b2", "a3"}));
}

TEST(Worker, WhatAJobThrowsIsToldToTheLoop) {
  LoopForTest loop;
  Worker worker;
  std::string text;
  worker.run([] { fail(Code::kInvalid, "no"); }, loop,
             [&](const std::exception_ptr& error) {
               text = error_of([&] { std::rethrow_exception(error); });
             });
  EXPECT_TRUE(loop.run_until([&] { return !text.empty(); }));
  EXPECT_EQ(text, "no");
}

TEST(Worker, ItEndsWithTheJobThatItIsAtAndDropsTheOthers) {
  std::promise<void> begun, go_on;
  std::jthread later;
  bool is_done = false, is_other_done = false;
  {
    Worker worker;
    worker.run([&] {
      begun.set_value();
      go_on.get_future().wait();
      is_done = true;
    });
    worker.run([&] { is_other_done = true; });
    begun.get_future().wait();
    later = std::jthread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it is ending by now
      go_on.set_value();
    });
  }
  EXPECT_TRUE(is_done);
  EXPECT_FALSE(is_other_done);
}

TEST(Worker, ClosedItDoesNothingMore) {
  bool is_done = false;
  Worker worker;
  worker.close();
  worker.run([&] { is_done = true; });
  worker.close();
  EXPECT_FALSE(is_done);
}

}  // namespace
}  // namespace twinkle::server
