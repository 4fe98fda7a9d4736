// Places of a batch, and pages, between tenants that want more of them than there are.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "twinkle/sampler/schedule/schedule_for_test.h"

namespace twinkle::sampler {
namespace {

struct Asked {
  int64_t num_samples = 1, max_tokens = 600, prompt = 3;
  double weight = 1;
  int32_t priority = 0;
};

class Places : public testing::Test {
 protected:
  Driver& start(const SamplerOptions& options) {
    driver_ = std::make_unique<Driver>(options);
    return *driver_;
  }
  Job* ask(const std::string& owner, const Asked& asked = {}) {
    Job* job = driver_->add(count_from(1000 * ++num_asked_, asked.prompt), asked.max_tokens, 7,
                            asked.num_samples);
    job->request.owner = owner;
    job->request.weight = asked.weight;
    job->request.priority = asked.priority;
    return job;
  }
  // Tokens of each owner in the next step.
  std::map<std::string, int64_t> step() {
    std::map<std::string, int64_t> out;
    driver_->compute = [&](Sequence& s) { out[s.job->request.owner] += s.next - s.computed; };
    driver_->step();
    driver_->compute = {};
    return out;
  }
  static int64_t num_made(const Job& job) {
    int64_t out = 0;
    for (const Completion& c : job.completions) out += std::ssize(c.tokens);
    return out;
  }
  // Runs to the end; each sample has as many tokens as it was to have, which follow one another.
  void expect_whole(const std::vector<Job*>& jobs) {
    for (int i = 0; !driver_->schedule.empty(); ++i) {
      ASSERT_LT(i, 100000);
      driver_->step();
    }
    for (const Job* job : jobs) {
      for (const Completion& c : job->completions)
        EXPECT_EQ(c.tokens, count_from(job->request.prompt.back() + 1, job->limit));
    }
    EXPECT_EQ(driver_->schedule.pool().num_free(), driver_->schedule.pool().num_pages());
  }

  std::unique_ptr<Driver> driver_;
  int32_t num_asked_ = 0;
};

using Tokens = std::map<std::string, int64_t>;

TEST_F(Places, ATenantWithoutOneGetsOneAtTheNextStepFromTheOneThatHasMost) {
  start({.kv_tokens = 1 << 16, .max_sequences = 8});
  Job* most = ask("most", {.num_samples = 5});
  Job* some = ask("some", {.num_samples = 3});
  for (int i = 0; i < 3; ++i) step();
  EXPECT_EQ(step(), (Tokens{{"most", 5}, {"some", 3}}));
  Job* quick = ask("quick", {.max_tokens = 2});
  EXPECT_EQ(step(), (Tokens{{"most", 4}, {"quick", 3}, {"some", 3}}));
  EXPECT_EQ(most->completions[4].tokens.size(), 4u) << "its newest gave way";
  EXPECT_EQ(step(), (Tokens{{"most", 4}, {"quick", 1}, {"some", 3}}));
  EXPECT_EQ(quick->num_left, 0);
  EXPECT_EQ(step(), (Tokens{{"most", 4 + 7}, {"some", 3}}))
      << "it comes back and is computed again";
  EXPECT_EQ(step(), (Tokens{{"most", 5}, {"some", 3}}));
  expect_whole({most, some, quick});
}

TEST_F(Places, SeveralThatComeTogetherEachGetOneAndAPromptOfManySamplesLeavesThem) {
  start({.kv_tokens = 1 << 16, .max_sequences = 8, .prefill_tokens = 100});
  Job* hog = ask("hog", {.num_samples = 64, .prompt = 500});
  step();
  for (const char* name : {"a", "b", "c"}) ask(name);
  const Tokens first = step();
  for (const char* name : {"a", "b", "c"}) EXPECT_EQ(first.at(name), 3) << name;
  while (!hog->forked) step();
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(step(), (Tokens{{"a", 1}, {"b", 1}, {"c", 1}, {"hog", 5}}));
  expect_whole({hog});
}

TEST_F(Places, AreSharedByWeight) {
  start({.kv_tokens = 1 << 16, .max_sequences = 8});
  std::vector<Job*> jobs;
  for (int i = 0; i < 16; ++i) jobs.push_back(ask("light"));
  for (int i = 0; i < 5; ++i) step();
  for (int i = 0; i < 16; ++i) jobs.push_back(ask("heavy", {.weight = 3}));
  for (int i = 0; i < 2; ++i) step();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(step(), (Tokens{{"heavy", 6}, {"light", 2}}));
  expect_whole(jobs);
}

TEST_F(Places, OfALowerPriorityGoToAHigherOneAndNotBack) {
  start({.kv_tokens = 1 << 16, .max_sequences = 4});
  std::vector<Job*> jobs{ask("low", {.num_samples = 4})};
  step();
  jobs.push_back(ask("high", {.num_samples = 3, .max_tokens = 100, .priority = 1}));
  step();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(step(), (Tokens{{"high", 3}, {"low", 1}}));
  jobs.push_back(ask("high", {.num_samples = 9, .max_tokens = 100, .priority = 1}));
  for (int i = 0; i < 2; ++i) step();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(step(), (Tokens{{"high", 4}}));
  expect_whole(jobs);
}

TEST_F(Places, WhoGaveWayMakes32TokensBeforeItDoesAgain) {
  start({.kv_tokens = 1 << 16, .max_sequences = 1});
  Job* hog = ask("hog", {.num_samples = 1, .max_tokens = 400});
  for (int i = 0; i < 10; ++i) step();
  ASSERT_EQ(num_made(*hog), 10);
  std::vector<int64_t> turns;  // its tokens whenever another's begins
  Job* quick = nullptr;
  while (hog->num_left > 0) {
    if (!quick || quick->num_left == 0) quick = ask("quick", {.max_tokens = 2});
    if (step().contains("quick") && num_made(*quick) == 1) turns.push_back(num_made(*hog));
  }
  ASSERT_GT(turns.size(), 10u);
  EXPECT_EQ(turns[0], 10) << "at once";
  for (size_t i = 1; i < turns.size(); ++i) EXPECT_EQ(turns[i] - turns[i - 1], 32);
  expect_whole({hog});
}

TEST_F(Places, MoreTenantsThanThereAreTakeTurns) {
  start({.kv_tokens = 1 << 16, .max_sequences = 4});
  std::vector<Job*> jobs;
  for (int i = 0; i < 6; ++i) jobs.push_back(ask(std::to_string(i), {.max_tokens = 1000}));
  int64_t made = 0;
  for (int i = 0; i < 900; ++i) {
    step();
    const auto [least, most] = std::ranges::minmax(jobs, {}, [](Job* j) { return num_made(*j); });
    EXPECT_LE(num_made(*most) - num_made(*least), 4 * kTurnTokens) << "in step " << i;
  }
  for (const Job* job : jobs) made += num_made(*job);
  EXPECT_GE(made, 900 * 4 * 9 / 10);
  // Pages are kept: what is computed again is the page that was begun.
  EXPECT_LE(driver_->num_computed, 2 * made);
  expect_whole(jobs);
}

TEST_F(Places, WhereThereAreNoPagesForANewTenantTheOneThatHasMostGivesThem) {
  start({.kv_tokens = 40 * 64, .max_sequences = 64, .prefill_tokens = 4096});
  std::vector<Job*> jobs;
  for (int i = 0; i < 6; ++i) jobs.push_back(ask("hog", {.max_tokens = 200, .prompt = 600}));
  for (int i = 0; i < 50; ++i) step();
  jobs.push_back(ask("new", {.max_tokens = 40, .prompt = 700}));
  EXPECT_EQ(step().at("new"), 700);
  for (int i = 1; i < 40; ++i) EXPECT_TRUE(step().contains("new")) << i;
  EXPECT_EQ(jobs.back()->num_left, 0);
  expect_whole(jobs);
}

TEST_F(Places, PagesThatASequenceNeedsAreThoseOfTheOneThatHasMost) {
  start({.kv_tokens = 14 * 64, .max_sequences = 64});
  const Asked asked{.max_tokens = 200, .prompt = 250};
  std::vector<Job*> jobs{ask("hog", asked), ask("hog", asked), ask("other", asked)};
  while (num_made(*jobs[0]) <= 320 - 250) step();
  step();  // the hog's first has needed a page that was not there
  EXPECT_TRUE(step().contains("other"));
  EXPECT_EQ(driver_->schedule.num_running(), 2);
  expect_whole(jobs);
}

TEST_F(Places, WithOneTenantNobodyGivesWay) {
  start({.kv_tokens = 1 << 16, .max_sequences = 4});
  std::vector<Job*> jobs;
  for (int i = 0; i < 6; ++i) jobs.push_back(ask("only", {.num_samples = 2, .max_tokens = 50}));
  expect_whole(jobs);
  EXPECT_EQ(driver_->num_computed, 6 * (3 + 2 * 49));
}

}  // namespace
}  // namespace twinkle::sampler
