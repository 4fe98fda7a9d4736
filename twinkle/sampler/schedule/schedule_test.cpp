#include "twinkle/sampler/schedule/schedule.h"

#include <gtest/gtest.h>

#include <random>

#include "twinkle/base/error_for_test.h"
#include "twinkle/sampler/schedule/schedule_for_test.h"

namespace twinkle::sampler {
namespace {

TEST(Schedule, SequencesThatDecodeGetATokenInEveryStepOfALongPrompt) {
  Driver driver({.kv_tokens = 4096, .prefill_tokens = 32});
  const int64_t first = driver.add(count_from(0, 20), 60, 0)->ticket;
  const int64_t second = driver.add(count_from(0, 10), 60, 0)->ticket;
  driver.step();
  const int64_t prompt = driver.add(count_from(0, 1000), 5, 0)->ticket;
  for (int i = 0; i < 31; ++i) {
    EXPECT_EQ(driver.step(), (std::map<int64_t, int64_t>{{first, 1}, {second, 1}, {prompt, 32}}));
  }
}

TEST(Schedule, ALongPromptGetsItsWholeBudgetHoweverManyDecode) {
  Driver driver({.kv_tokens = 1 << 16, .max_sequences = 40, .prefill_tokens = 64});
  for (int i = 0; i < 39; ++i) driver.add({i}, 1000, 0);
  driver.step();
  const int64_t prompt = driver.add(count_from(0, 640), 5, 0)->ticket;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(driver.step()[prompt], 64);
  EXPECT_EQ(driver.step()[prompt], 1);
}

TEST(Schedule, AGroupOfEqualPromptsComputesThePromptOnce) {
  for (const int64_t length : {1, 30, 64, 100, 128, 700}) {
    Driver driver({.kv_tokens = 1 << 15, .prefill_tokens = 150});
    for (int i = 0; i < 8; ++i) driver.add(count_from(0, length), 3, 7, 1 + i % 2);
    EXPECT_EQ(driver.run(), length + 2 * 12) << length;  // the last token is not computed
  }
}

TEST(Schedule, WhatPromptsHaveInCommonIsComputedOnceByWholePages) {
  Driver driver({.kv_tokens = 1 << 15, .prefill_tokens = 100});
  for (int i = 0; i < 5; ++i) {
    std::vector<int32_t> prompt = count_from(0, 150);
    prompt.insert(prompt.end(), static_cast<size_t>(10 + i), -1);
    driver.add(prompt, 1, 7);
  }
  EXPECT_EQ(driver.run(), 128 + 5 * 32 + 0 + 1 + 2 + 3 + 4);
}

TEST(Schedule, ALaterRequestTakesPagesOfPromptsAndOfGeneratedTokens) {
  Driver driver({.kv_tokens = 1 << 15});
  driver.add(count_from(0, 100), 100, 7);
  driver.run();
  driver.num_computed = 0;
  driver.add(count_from(0, 200), 1, 7);  // 0, 1, 2 ... is also what was generated
  EXPECT_EQ(driver.run(), 200 - 192);
  driver.num_computed = 0;
  driver.add(count_from(0, 192), 1, 7);
  EXPECT_EQ(driver.run(), 64);  // the last token's logits are needed
}

TEST(Schedule, OtherVersionsAndNoVersionShareNothing) {
  Driver driver({.kv_tokens = 1 << 15});
  driver.add(count_from(0, 130), 1, 7);
  driver.add(count_from(0, 130), 1, 8);
  driver.add(count_from(0, 130), 1, 0);
  driver.add(count_from(0, 130), 1, 0);
  EXPECT_EQ(driver.run(), 4 * 130);
}

TEST(Schedule, PagesOfTheBaseModelAreTheirTenantsUnlessTheyAreToBeShared) {
  for (const bool share : {false, true}) {
    Driver driver({.kv_tokens = 1 << 15, .share_prefixes = share});
    const auto computed = [&](const std::vector<std::string>& owners, int32_t first, int32_t slot) {
      driver.num_computed = 0;
      for (const std::string& owner : owners) {
        Job* job = driver.add(count_from(first, 130), 1, 7);
        job->request.owner = owner;
        job->request.slot = slot;
      }
      return driver.run();
    };
    EXPECT_EQ(computed({"a"}, 0, -1), 130);
    EXPECT_EQ(computed({"b"}, 0, -1), share ? 2 : 130);
    EXPECT_EQ(computed({"a"}, 0, -1), 2);
    EXPECT_EQ(computed({"b"}, 0, -1), 2);
    EXPECT_EQ(computed({"a", "b", "a"}, 1000, -1), share ? 130 : 2 * 130) << "nor do they wait";
    EXPECT_EQ(computed({"a", "b"}, 2000, 3), 130) << "a version of an adapter is one tenant's";
  }
}

TEST(Schedule, PagesThatWereUsedLongestAgoMakeRoom) {
  Driver driver({.kv_tokens = 6 * 64});
  const auto computed = [&](int32_t first) {
    driver.num_computed = 0;
    driver.add(count_from(first, 129), 1, 7);
    return driver.run();
  };
  EXPECT_EQ(computed(0), 129);
  EXPECT_EQ(computed(1000), 129);
  EXPECT_EQ(computed(0), 1);  // used again: the other one is older now
  EXPECT_EQ(computed(2000), 129);
  EXPECT_EQ(computed(0), 1);
  EXPECT_GT(computed(1000), 64);
}

TEST(Schedule, AResetForgetsPagesAndWhatRunsLeavesNone) {
  Driver driver({.kv_tokens = 1 << 15, .prefill_tokens = 64});
  driver.add(count_from(0, 130), 1, 7);
  driver.run();
  Job* running = driver.add(count_from(0, 600), 100, 7);
  driver.step();
  driver.schedule.reset_prefixes();
  while (running->num_left > 0) driver.step();
  driver.num_computed = 0;
  driver.add(count_from(0, 600), 1, 7);
  EXPECT_EQ(driver.run(), 600);
}

TEST(Schedule, WhenTheOneThatIsWaitedForIsCancelledTheNextGoesOn) {
  Driver driver({.kv_tokens = 1 << 15, .prefill_tokens = 70});
  Job* first = driver.add(count_from(0, 300), 4, 7);
  Job* second = driver.add(count_from(0, 300), 4, 7);
  driver.add(count_from(0, 300), 4, 7);
  driver.step();
  driver.step();
  first->num_left = 0;
  driver.schedule.sweep();
  EXPECT_EQ(driver.schedule.num_sequences(), 2);
  EXPECT_EQ(driver.step()[second->ticket], 70);
  driver.run();
  // The page that the first had begun is begun again, from its start.
  EXPECT_EQ(driver.num_computed, 300 + 140 % 64 + 2 * 3);
}

TEST(Schedule, EverythingEndsAndEveryPageComesBackWhateverRunsOutOrIsCancelled) {
  std::mt19937 random(11);
  for (int round = 0; round < 40; ++round) {
    const auto below = [&](unsigned n) { return static_cast<int64_t>(random() % n); };
    const int64_t num_pages = 8 + below(20);
    Driver driver({.kv_tokens = 64 * num_pages,
                   .max_sequences = 1 + below(8),
                   .prefill_tokens = 1 + below(200)});
    std::vector<Job*> jobs;
    for (int step = 0; step < 300; ++step) {
      if (below(4) == 0) {
        jobs.push_back(driver.add(count_from(static_cast<int32_t>(below(2)) * 1000, 1 + below(300)),
                                  1 + below(200), static_cast<uint64_t>(below(3)), 1 + below(3)));
        jobs.back()->request.owner = std::to_string(below(4));
        jobs.back()->request.weight = static_cast<double>(1 + below(5));
        jobs.back()->request.priority = static_cast<int32_t>(below(2));
      }
      if (below(20) == 0 && !jobs.empty()) {
        jobs[static_cast<size_t>(below(static_cast<unsigned>(jobs.size())))]->num_left = 0;
        driver.schedule.sweep();
      }
      if (below(90) == 0) driver.schedule.reset_prefixes();
      driver.step();
    }
    for (int step = 0; !driver.schedule.empty(); ++step) {
      ASSERT_LT(step, 200000) << "round " << round;
      ASSERT_FALSE(driver.step().empty());  // no step without progress
    }
    EXPECT_EQ(driver.schedule.pool().num_free(), num_pages);
  }
}

TEST(Schedule, TellsHowManySequencesThereAreAndHowManyOfThemRun) {
  Driver driver({.kv_tokens = 1 << 15, .max_sequences = 3});
  for (int i = 0; i < 3; ++i) driver.add({i}, 4, 0, 2);
  EXPECT_EQ(driver.schedule.num_sequences(), 3);
  EXPECT_EQ(driver.schedule.num_running(), 0);
  driver.step();
  EXPECT_EQ(driver.schedule.num_sequences(), 5);
  EXPECT_EQ(driver.schedule.num_running(), 4);
  driver.run();
  EXPECT_EQ(driver.schedule.num_sequences(), 0);
}

TEST(Schedule, NoMoreThanTheBatchHoldsRunHoweverManyWait) {
  Driver driver({.kv_tokens = 1 << 16, .max_sequences = 4});
  const std::string owner = "a";
  for (int i = 0; i < 50; ++i) driver.add(count_from(i, 30), 6, 0)->request.owner = owner;
  driver.step();
  EXPECT_EQ(driver.schedule.num_running(), 4);
  const Job* late = driver.add(count_from(0, 30), 6, 0);
  int steps = 1;
  for (; late->num_left > 0; ++steps) {
    driver.step();
    ASSERT_LE(driver.schedule.num_running(), 4);
  }
  EXPECT_LE(steps, 16) << "an owner that holds nothing is next";
  EXPECT_GT(driver.schedule.num_sequences(), 30);
  driver.run();
  EXPECT_EQ(driver.schedule.pool().num_free(), driver.schedule.pool().num_pages());
}

TEST(Schedule, AJobThatIsOverWhileItWaitsIsForgotten) {
  Driver driver({.kv_tokens = 1 << 16, .max_sequences = 1});
  for (int i = 0; i < 3; ++i) driver.add({1, 2, 3}, 4, 0);
  driver.step();
  Job* waiting = driver.add({1, 2}, 4, 0);
  waiting->num_left = 0;
  driver.schedule.sweep();
  EXPECT_EQ(driver.schedule.num_sequences(), 3);
  driver.run();
}

TEST(Schedule, RefusesOptionsBelowOne) {
  EXPECT_EQ(error_of([] { Schedule({.max_sequences = 0}); }),
            "sampler: max_sequences is 0, it must be an integer of at least 1, at most 2147483647");
  EXPECT_EQ(
      error_of([] { Schedule({.prefill_tokens = 0}); }),
      "sampler: prefill_tokens is 0, it must be an integer of at least 1, at most 2147483647");
}

}  // namespace
}  // namespace twinkle::sampler
