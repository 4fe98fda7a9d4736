// A batch waits a little for the tenants of the one before it.
#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "twinkle/engine/schedule/dispatched_for_test.h"

namespace twinkle::engine {
namespace {

constexpr double kLong = 1000;  // ms of a clock that stands still: such a wait never ends by time
constexpr auto kSoon = std::chrono::seconds(20);

class Gathering : public testing::Test {
 protected:
  void open(double gather_ms) {
    if (gather_ms == kLong) executor_.clock = [] { return 0.0; };
    dispatcher_ = std::make_unique<Dispatcher>(
        DispatcherOptions{.token_budget = 100, .gather_ms = gather_ms}, executor_);
    run({Create{"a"}, Create{"b"}, Create{"c"}});
  }
  std::vector<Future> submit(std::vector<Operation> operations) {
    return dispatcher_->submit(std::move(operations));
  }
  void run(std::vector<Operation> operations) {
    for (Future& future : submit(std::move(operations))) future.get();
  }
  // Tenants of each batch.
  std::vector<std::set<std::string>> batches() {
    dispatcher_.reset();
    return seen_;
  }

  std::vector<std::set<std::string>> seen_;
  NullExecutor executor_;
  std::unique_ptr<Dispatcher> dispatcher_;

  void SetUp() override {
    executor_.on_batch = [this] {
      seen_.emplace_back();
      for (const Work& w : executor_.batches.back()) seen_.back().insert(tenant_of(*w.operation));
    };
  }
};

TEST_F(Gathering, TenantsThatWaitForTheirResultsShareTheNextBatchToo) {
  open(kLong);
  run({pass_of("a", 1), pass_of("b", 1)});
  for (int round = 0; round < 3; ++round) {
    auto a = submit({pass_of("a", 1)}), b = submit({pass_of("b", 1)});
    a[0].get();
    b[0].get();
  }
  const auto seen = batches();
  ASSERT_EQ(seen.size(), 4u);
  for (const auto& batch : seen) EXPECT_EQ(batch, (std::set<std::string>{"a", "b"}));
}

TEST_F(Gathering, StepsInBetweenDoNotEndTheWait) {
  open(kLong);
  run({pass_of("a", 1), pass_of("b", 1)});
  for (int round = 0; round < 3; ++round) {
    run({Step{"a"}});
    auto a = submit({pass_of("a", 1)});  // waits for b ...
    run({Step{"b"}});                    // ... which still does something else
    auto b = submit({pass_of("b", 1)});
    a[0].get();
    b[0].get();
  }
  const auto seen = batches();
  ASSERT_EQ(seen.size(), 4u);
  for (const auto& batch : seen) EXPECT_EQ(batch, (std::set<std::string>{"a", "b"}));
}

TEST_F(Gathering, WhoOnlyStepsDoesNotKeepABatchWaiting) {
  open(50);
  run({pass_of("a", 1), pass_of("b", 1)});
  auto a = submit({pass_of("a", 1)});
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (a[0].wait_for(std::chrono::seconds(0)) != std::future_status::ready &&
         std::chrono::steady_clock::now() < end)
    run({Step{"b"}});
  EXPECT_EQ(a[0].wait_for(std::chrono::seconds(0)), std::future_status::ready);
}

TEST_F(Gathering, OneThatStaysAwayDelaysOneBatch) {
  open(20);
  run({pass_of("a", 1), pass_of("b", 1)});
  for (int i = 0; i < 3; ++i) run({pass_of("a", 1)});
  const auto seen = batches();
  ASSERT_EQ(seen.size(), 4u);
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(seen[i], (std::set<std::string>{"a"}));
}

TEST_F(Gathering, NobodyWaitsForATenantThatIsGone) {
  open(kLong);
  run({pass_of("a", 1), pass_of("b", 1)});
  run({Delete{"b"}});
  auto future = submit({pass_of("a", 1)});
  EXPECT_EQ(future[0].wait_for(kSoon), std::future_status::ready);
}

TEST_F(Gathering, WhatRunsByItselfAndWhatIsSampledDoNotWait) {
  open(kLong);
  run({pass_of("a", 1), pass_of("b", 1)});
  auto step = submit({Step{"a"}});
  EXPECT_EQ(step[0].wait_for(kSoon), std::future_status::ready);
  SamplingParams params;
  params.max_tokens = 2;
  auto sample = submit({Sample{"a", {{1}}, {params}}});
  EXPECT_EQ(sample[0].wait_for(kSoon), std::future_status::ready);
}

TEST_F(Gathering, ALoneTenantNeverWaits) {
  open(kLong);
  for (int i = 0; i < 5; ++i) {
    auto future = submit({pass_of("a", 1)});
    EXPECT_EQ(future[0].wait_for(kSoon), std::future_status::ready);
    future[0].get();
  }
}

TEST_F(Gathering, NobodyWaitsWhenItIsTurnedOff) {
  open(0);
  run({pass_of("a", 1), pass_of("b", 1)});
  run({pass_of("a", 1)});
  EXPECT_EQ(batches().size(), 2u);
}

TEST_F(Gathering, ClosingEndsTheWait) {
  open(kLong);
  run({pass_of("a", 1), pass_of("b", 1)});
  auto future = submit({pass_of("a", 1)});
  dispatcher_.reset();
  EXPECT_THROW(future[0].get(), Error);
}

// Two tenants train; what comes then waits for the other, by a clock that the test sets.
class GatherClock : public testing::Test {
 protected:
  GatherClock() {
    executor_.clock = [this] { return now_.load(); };
    dispatcher_.emplace(DispatcherOptions{.token_budget = 100, .gather_ms = 1}, executor_);
    for (Future& future :
         dispatcher_->submit({Create{"a"}, Create{"b"}, pass_of("a", 1), pass_of("b", 1)}))
      future.get();
  }
  Future submit() { return std::move(dispatcher_->submit({pass_of("a", 1)})[0]); }
  static void expect_waiting(const Future& future) {
    EXPECT_EQ(future.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  }

  std::atomic<double> now_ = 0;  // seconds
  NullExecutor executor_;
  std::optional<Dispatcher> dispatcher_;
};

TEST_F(GatherClock, SaysWhenTheWaitIsOver) {
  Future future = submit();
  expect_waiting(future);
  now_ = 0.002;
  future.get();
}

TEST_F(GatherClock, ABatchThatIsCancelledWhileItWaitsTakesNothingOfTheNextOnesWait) {
  const Future first = submit();
  expect_waiting(first);
  EXPECT_TRUE(dispatcher_->cancel(first.id));
  now_ = 1;
  Future second = submit();
  expect_waiting(second);
  now_ = 2;
  second.get();
}

TEST(GatherOptions, AreChecked) {
  NullExecutor executor;
  for (const double bad : {-1.0, 1001.0, std::numeric_limits<double>::quiet_NaN()}) {
    try {
      Dispatcher dispatcher({.gather_ms = bad}, executor);
      ADD_FAILURE() << bad;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("it must be a number of at least 0, at most 1000"),
                std::string::npos);
    }
  }
}

}  // namespace
}  // namespace twinkle::engine
