#include "twinkle/sampler/ranks/ranks.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "twinkle/base/error_for_test.h"
#include "twinkle/mesh/thread_comm.h"

namespace twinkle::sampler {
namespace {

std::unique_ptr<Job> job_of(int64_t prompt, int64_t limit, uint64_t version = 1) {
  auto out = std::make_unique<Job>();
  out->request.prompt.assign(static_cast<size_t>(prompt), 1);
  out->request.version = version;
  out->limit = limit;
  out->num_left = 1;
  return out;
}

TEST(Ranks, GetARequestEachWhereTheFewestTokensAreToCome) {
  const auto comms = mesh::thread_comms(3);
  const Ranks ranks(*comms[1]);
  std::map<int64_t, std::unique_ptr<Job>> jobs;
  std::vector<int> placed;
  int64_t ticket = 0;
  for (const int64_t prompt : {50, 10, 10, 10, 30, 5}) {
    auto job = job_of(prompt, 5);
    ranks.place(*job, jobs);
    placed.push_back(job->rank);
    EXPECT_EQ(ranks.has(*job), job->rank == 1);
    jobs[ticket++] = std::move(job);
  }
  EXPECT_EQ(placed, (std::vector{0, 1, 2, 1, 2, 1}));
}

TEST(Ranks, ShareNoPagesWithEachOther) {
  const auto comms = mesh::thread_comms(2);
  const Ranks ranks(*comms[0]);
  std::map<int64_t, std::unique_ptr<Job>> jobs;
  std::set<uint64_t> versions;
  for (int64_t i = 0; i < 8; ++i) {
    auto job = job_of(4, 4, 1 + static_cast<uint64_t>(i) / 4);
    ranks.place(*job, jobs);
    versions.insert(job->request.version);
    jobs[i] = std::move(job);
  }
  EXPECT_EQ(versions.size(), 4u) << "of two versions on two ranks";
  auto unshared = job_of(4, 4, 0);
  ranks.place(*unshared, jobs);
  EXPECT_EQ(unshared->request.version, 0u);
}

TEST(Ranks, TellEachOtherWhatTheyHaveFoundInTheOrderOfTheJobs) {
  const auto comms = mesh::thread_comms(3);
  std::vector<Job> jobs(5);
  std::vector<const Job*> all;
  for (size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].rank = static_cast<int>(2 * i % 3);
    all.push_back(&jobs[i]);
  }
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      const Ranks ranks(*comms[static_cast<size_t>(r)]);
      Ranks::Found mine;
      for (size_t i = 0; i < jobs.size(); ++i) {
        if (!ranks.has(jobs[i])) continue;
        const auto token = static_cast<int32_t>(i);
        mine.tokens.push_back({token, -0.5f * static_cast<float>(i), {{token, 0.25f}}});
        if (i % 2) mine.prompts.push_back({.logprobs = {static_cast<float>(i), 7}});
      }
      const Ranks::Found found = ranks.gather(mine, std::vector{all[1], all[3]}, all);
      ASSERT_EQ(found.tokens.size(), 5u);
      for (size_t i = 0; i < jobs.size(); ++i) {
        EXPECT_EQ(found.tokens[i].token, static_cast<int32_t>(i));
        EXPECT_EQ(found.tokens[i].logprob, -0.5f * static_cast<float>(i));
        EXPECT_EQ(found.tokens[i].top.at(0).id, static_cast<int32_t>(i));
      }
      ASSERT_EQ(found.prompts.size(), 2u);
      EXPECT_EQ(found.prompts[0].logprobs, (std::vector{1.0f, 7.0f}));
      EXPECT_EQ(found.prompts[1].logprobs, (std::vector{3.0f, 7.0f}));
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(Ranks, ThatHaveFoundOtherThanTheOthersExpectAreNamed) {
  const auto comms = mesh::thread_comms(2);
  std::vector<Job> jobs(2);
  jobs[1].rank = 1;
  const std::vector<const Job*> all{&jobs[0], &jobs[1]};
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const Ranks ranks(*comms[static_cast<size_t>(r)]);
      for (const size_t count : {size_t{0}, size_t{2}}) {
        Ranks::Found mine;
        mine.tokens.resize(r == 1 ? count : size_t{1});
        EXPECT_EQ(error_of([&] { ranks.gather(mine, {}, all); }),
                  "sampler: rank 1 has computed " + std::to_string(count) +
                      " tokens of a step where the others expect 1: the ranks no longer have the "
                      "same requests");
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace twinkle::sampler
