#include <gtest/gtest.h>

#include <algorithm>

#include "twinkle/base/random.h"
#include "twinkle/sampler/schedule/schedule_for_test.h"

namespace twinkle::sampler {
namespace {

struct Asks {
  std::string owner;
  double weight;
  int64_t longest;  // tokens of its longest prompts
  size_t waiting;   // prompts that it keeps in the queue
};

// Prompt tokens of each owner in each of many steps, with prompts of all waiting in all of them.
std::vector<std::map<std::string, int64_t>> served(const std::vector<Asks>& all, uint64_t seed,
                                                   int64_t budget) {
  Driver driver({.kv_tokens = 1 << 20, .max_sequences = 64, .prefill_tokens = budget});
  uint64_t draws = 0;
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(key_of(seed, ++draws) % static_cast<uint64_t>(n));
  };
  std::vector<std::vector<Job*>> jobs(all.size());
  std::vector<std::map<std::string, int64_t>> steps;
  for (int step = 0; step < 100; ++step) {
    for (size_t o = 0; o < all.size(); ++o) {
      std::erase_if(jobs[o], [](const Job* job) { return job->forked; });
      while (jobs[o].size() < all[o].waiting) {
        const int64_t length = all[o].longest / 2 + below(all[o].longest / 2) + 1;
        Job* job = driver.add(count_from(0, length), 1 + below(5), 0);
        job->request.owner = all[o].owner;
        job->request.weight = all[o].weight;
        jobs[o].push_back(job);
      }
    }
    driver.step();
    steps.push_back(driver.prompt_tokens);
  }
  return steps;
}

TEST(Prefill, InAnyWindowOf20StepsAnOwnerGetsFourFifthsOfItsWeightBesideAHundredfoldHog) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    std::vector<Asks> all{{"hog", 1.0 + static_cast<double>(seed % 3), 8000, 60}};
    for (uint64_t o = 0; o <= seed % 5; ++o)
      all.push_back({std::to_string(o), 1.0 + static_cast<double>((seed + o) % 4), 700, 4});
    double sum = 0;
    for (const Asks& a : all) sum += a.weight;
    const auto steps = served(all, seed, 512);
    for (size_t from = 0; from + 20 <= steps.size(); ++from) {
      for (const Asks& a : all) {
        int64_t got = 0;
        for (size_t s = from; s < from + 20; ++s) {
          const auto it = steps[s].find(a.owner);
          if (it != steps[s].end()) got += it->second;
        }
        ASSERT_GE(static_cast<double>(got), 0.8 * 20 * 512 * a.weight / sum)
            << "seed " << seed << ", owner " << a.owner << ", from step " << from;
      }
    }
  }
}

Job* add(Driver& driver, const std::string& owner, std::vector<int32_t> prompt, uint64_t version,
         int32_t priority = 0) {
  Job* job = driver.add(std::move(prompt), 1, version);
  job->request.owner = owner;
  job->request.priority = priority;
  return job;
}

TEST(Prefill, ANewcomersShortPromptDoesNotWaitForAHogsLongOnes) {
  Driver driver({.kv_tokens = 1 << 16, .prefill_tokens = 512});
  for (int i = 0; i < 5; ++i) add(driver, "hog", count_from(0, 8000), 0);
  driver.step();
  const Job* job = add(driver, "new", count_from(0, 250), 0);
  driver.step();
  EXPECT_EQ(job->num_left, 0);
}

TEST(Prefill, PromptsOfAHigherPriorityComeFirst) {
  Driver driver({.kv_tokens = 1 << 16, .prefill_tokens = 512});
  add(driver, "low", count_from(0, 3000), 0);
  const Job* high = add(driver, "high", count_from(0, 700), 0, 1);
  EXPECT_EQ(driver.step(), (std::map<int64_t, int64_t>{{high->ticket, 512}}));
  EXPECT_EQ(driver.step()[high->ticket], 188);
}

TEST(Prefill, WhoWaitsForAPageThatAHogComputesLendsItsTurns) {
  // The same beginning, first in the hog's queue: at its own turns alone it takes 40 steps.
  Driver driver({.kv_tokens = 1 << 16, .prefill_tokens = 256, .share_prefixes = true});
  std::vector<int32_t> prompt = count_from(0, 1024);
  for (int i = 0; i < 9; ++i) {
    std::vector<int32_t> other = count_from(5000 * (i + 1), 4000);
    add(driver, std::to_string(i), other, 7);
  }
  add(driver, "hog", prompt, 7);
  const Job* job = add(driver, "new", prompt, 7);
  int steps = 0;
  for (; job->num_left > 0; ++steps) driver.step();
  EXPECT_LE(steps, 11 * 1024 / 256 / 2 + 1) << "the two owners' turns together";
}

TEST(Prefill, OwnersTakeTurnsWhereAllThatRanEndsAtOnce) {
  // Each request of the hog's takes the whole batch, and ends in one step.
  Driver driver({.kv_tokens = 1 << 16, .max_sequences = 8, .prefill_tokens = 512});
  for (int i = 0; i < 24; ++i) driver.add(count_from(100 * i, 5), 45, 0, 8)->request.owner = "hog";
  for (int i = 0; i < 3; ++i) driver.step();
  const Job* small = add(driver, "new", count_from(0, 5), 0);
  int steps = 0;
  while (small->num_left > 0 && steps < 24 * 46) driver.step(), ++steps;
  EXPECT_LE(steps, 2 * 46) << "when the hog's first has ended";
}

TEST(Prefill, PagesThatComeFreeGoToWhoHoldsFewestAndSmallPromptsDoNotPassALargeOne) {
  Driver driver({.kv_tokens = 40 * 64, .prefill_tokens = 4096});
  for (int i = 0; i < 6; ++i)  // three of them fill the cache
    driver.add(count_from(0, 600), 20, 0)->request.owner = "hog";
  driver.step();
  ASSERT_EQ(driver.schedule.num_running(), 3);
  Job* large = add(driver, "new", count_from(0, 1200), 0);
  for (int i = 0; i < 30; ++i) driver.add(count_from(0, 100), 20, 0)->request.owner = "hog";
  int steps = 0;
  while (large->num_left > 0 && steps < 40) driver.step(), ++steps;
  EXPECT_LE(steps, 25) << "when the first of the hog's ended";
}

}  // namespace
}  // namespace twinkle::sampler
