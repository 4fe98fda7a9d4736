#include "twinkle/engine/schedule/dispatcher.h"

#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "twinkle/base/random.h"
#include "twinkle/engine/schedule/dispatched_for_test.h"

namespace twinkle::engine {
namespace {

TEST_F(Dispatched, OperationsOfATenantRunInOrderFromItsCreateToItsDelete) {
  open();
  std::vector<Operation> operations{Create{"a"},     pass_of("a", 2), Step{"a", "AdamW", "one"},
                                    pass_of("a", 1), Inspect{"a"},    Delete{"a"},
                                    pass_of("a", 1), Create{"a"},     Inspect{"a"}};
  auto futures = dispatcher_->submit(std::move(operations));
  for (size_t i : {0, 1, 2, 3, 5, 7}) EXPECT_EQ(error_of(futures[i]), "no error") << i;
  EXPECT_EQ(error_of(futures[6]), "null: no tenant 'a'");
  const auto seen = std::get<InspectResult>(futures[4].get()).tensors;
  const std::string first = std::to_string(futures[1].id), second = std::to_string(futures[3].id);
  ASSERT_EQ(seen.size(), 4u);
  EXPECT_EQ(seen[0].name, first + "/0");
  EXPECT_EQ(seen[2].name, "step one");
  EXPECT_EQ(seen[3].name, second + "/0");
  EXPECT_TRUE(std::get<InspectResult>(futures[8].get()).tensors.empty());
}

TEST_F(Dispatched, AnErrorIsThatOfItsOperationAlone) {
  open();
  create("a");
  create("b");
  ForwardBackward bad = pass_of("a", 30);
  bad.loss = "fail";
  auto futures = dispatcher_->submit(
      {bad, pass_of("b", 3), Step{"a", "fail"}, pass_of("a", 1), Create{"b"}, Step{"ghost"}});
  EXPECT_EQ(error_of(futures[0]), "null: failed");
  EXPECT_EQ(error_of(futures[1]), "no error");
  EXPECT_EQ(error_of(futures[2]), "null: failed");
  EXPECT_EQ(error_of(futures[3]), "no error");
  EXPECT_EQ(error_of(futures[4]), "null: 'b' exists");
  EXPECT_EQ(error_of(futures[5]), "null: no tenant 'ghost'");
  EXPECT_EQ(state("a").size(), 1u);
  EXPECT_EQ(state("b").size(), 3u);
}

TEST_F(Dispatched, AHugeOperationDoesNotDelayASmallTenant) {
  open();
  create("hog");
  create("small");
  hold_batch();
  Future huge = submit(pass_of("hog", 1000));
  in_batch_.wait();
  Future quick = submit(pass_of("small", 1));
  go_on_.count_down();
  quick.get();
  huge.get();
  EXPECT_EQ(dispatcher_->stats().tenants.at("hog").num_tokens, 10000);
  dispatcher_.reset();
  EXPECT_GE(executor_.batches.size(), 100u);
  size_t which = 0;
  while (executor_.batches[which].back().id != quick.id &&
         executor_.batches[which].front().id != quick.id)
    ++which;
  EXPECT_EQ(which, 1u) << "it came during the first batch";
}

TEST_F(Dispatched, ATenantThatStepsBetweenItsOperationsMissesNoBatch) {
  open();
  create("hog");
  create("small");
  hold_batch();
  const Future first = submit(pass_of("hog", 1));
  in_batch_.wait();
  const Future hog = submit(pass_of("hog", 200));
  std::vector<Future> futures;
  for (int i = 0; i < 6; ++i) {
    futures.push_back(submit(pass_of("small", 2)));
    for (const char* options : {"clip", "step", "zero"})
      futures.push_back(submit(Step{.tenant = "small", .options = options}));
  }
  go_on_.count_down();
  for (Future& f : futures) f.get();
  dispatcher_.reset();
  for (size_t b = 1; b <= 6; ++b) {
    const auto& batch = executor_.batches[b];
    EXPECT_TRUE(
        std::ranges::any_of(batch, [&](const Work& w) { return w.id == futures[(b - 1) * 4].id; }));
  }
}

TEST_F(Dispatched, AQueuedOperationIsCancelledAndNothingElse) {
  open();
  create("a");
  hold_batch();
  auto futures = dispatcher_->submit({pass_of("a", 10), pass_of("a", 2), pass_of("a", 1)});
  in_batch_.wait();
  EXPECT_TRUE(dispatcher_->cancel(futures[1].id));
  EXPECT_EQ(error_of(futures[1]), "engine: cancelled") << "at once";
  EXPECT_FALSE(dispatcher_->cancel(futures[1].id));
  go_on_.count_down();
  futures[0].get();
  futures[2].get();
  EXPECT_FALSE(dispatcher_->cancel(futures[0].id)) << "it has ended";
  EXPECT_FALSE(dispatcher_->cancel(12345));
  EXPECT_EQ(state("a").size(), 11u);
}

TEST_F(Dispatched, OperationsOfATenantThatShareABatchCanNotBeCancelledAnyMore) {
  open();
  create("a");
  hold_batch();
  auto futures = dispatcher_->submit({pass_of("a", 2), pass_of("a", 3), pass_of("a", 1)});
  in_batch_.wait();
  for (const Future& future : futures) EXPECT_FALSE(dispatcher_->cancel(future.id));
  go_on_.count_down();
  for (Future& future : futures) EXPECT_EQ(error_of(future), "no error");
  EXPECT_EQ(executor_.num_batches, 1);
  EXPECT_EQ(state("a").size(), 6u);
}

TEST_F(Dispatched, AnOperationThatRunsIsUndoneWhenItIsCancelled) {
  for (const size_t num_sequences : {1000, 1}) {  // in the middle, and in its last batch
    NullExecutor executor;
    std::latch in_batch(1), go_on(1);
    std::atomic<bool> held = false;
    executor.on_batch = [&] {
      if (held.exchange(true)) return;
      in_batch.count_down();
      go_on.wait();
    };
    Dispatcher dispatcher({.token_budget = 100}, executor);
    auto futures = dispatcher.submit({Create{"a"}, pass_of("a", num_sequences), Inspect{"a"}});
    in_batch.wait();
    EXPECT_TRUE(dispatcher.cancel(futures[1].id));
    EXPECT_TRUE(dispatcher.cancel(futures[1].id)) << "twice is the same";
    go_on.count_down();
    EXPECT_EQ(error_of(futures[1]), "engine: cancelled");
    EXPECT_TRUE(std::get<InspectResult>(futures[2].get()).tensors.empty());
    EXPECT_EQ(executor.num_batches, 1);
  }
}

TEST_F(Dispatched, ABatchOfWhichNothingIsWantedAnyMoreStopsAtItsNextLayer) {
  open();
  for (const char* tenant : {"a", "b"}) create(tenant);
  hold_batch();
  executor_.layers = 40;
  auto futures = dispatcher_->submit({pass_of("a", 3), pass_of("b", 3)});
  in_batch_.wait();
  for (const Future& future : futures) EXPECT_TRUE(dispatcher_->cancel(future.id));
  go_on_.count_down();
  for (Future& future : futures) EXPECT_EQ(error_of(future), "engine: cancelled");
  EXPECT_EQ(executor_.num_layers, 0);
  EXPECT_EQ(executor_.num_batches, 1);
  EXPECT_TRUE(state("a").empty());
  submit(pass_of("a", 1)).get();
  EXPECT_EQ(executor_.num_layers, 40) << "the next batch is another";
}

TEST_F(Dispatched, ABatchOfWhichSomethingIsWantedGoesOnAndDropsTheRestAtItsEnd) {
  open();
  for (const char* tenant : {"a", "b"}) create(tenant);
  hold_batch();
  executor_.layers = 40;
  auto futures = dispatcher_->submit({pass_of("a", 3), pass_of("b", 3)});
  in_batch_.wait();
  EXPECT_TRUE(dispatcher_->cancel(futures[0].id));
  go_on_.count_down();
  EXPECT_EQ(error_of(futures[0]), "engine: cancelled");
  EXPECT_EQ(error_of(futures[1]), "no error");
  EXPECT_EQ(executor_.num_layers, 40);
  EXPECT_EQ(executor_.num_batches, 1) << "nobody runs again";
  EXPECT_TRUE(state("a").empty());
  EXPECT_EQ(state("b").size(), 3u);
}

TEST_F(Dispatched, ARunningSampleIsDroppedAtTheNextStep) {
  open();
  create("a");
  std::latch sampling(1), go_on(1);
  std::atomic<bool> held = false;
  executor_.on_step = [&] {
    if (held.exchange(true)) return;
    sampling.count_down();
    go_on.wait();
  };
  Future endless = submit(sampled("a", 1000000, 9));
  Future step = submit(Step{"a"});
  sampling.wait();
  EXPECT_TRUE(dispatcher_->cancel(endless.id));
  go_on.count_down();
  EXPECT_EQ(error_of(endless), "engine: cancelled");
  step.get();
  EXPECT_EQ(executor_.num_steps, 1);
}

TEST_F(Dispatched, ASampleHoldsNothingBackThatComesAfterIt) {
  open();
  create("a");
  std::atomic<int64_t> steps_before_last_batch = 0;
  executor_.on_step = [&] { time_ = time_ + 1; };
  executor_.on_batch = [&] {
    time_ = time_ + 1;
    steps_before_last_batch = executor_.num_steps.load();
  };
  auto futures =
      dispatcher_->submit({sampled("a", 200), pass_of("a", 1), Step{"a"}, pass_of("a", 1)});
  for (Future& future : futures) EXPECT_EQ(error_of(future), "no error");
  EXPECT_LT(steps_before_last_batch, 10);
  EXPECT_EQ(executor_.num_steps, 200);
}

TEST_F(Dispatched, WhatChangesTheBaseWaitsForAllThatReadIt) {
  open();
  create("base");
  create("frozen");
  hold_batch();
  Forward forward{.tenant = "frozen", .sequences = pass_of("", 500).sequences};
  Future reads = submit(forward);
  in_batch_.wait();
  // The step waits for the forward that has begun; what comes later waits for the step.
  auto futures = dispatcher_->submit({Step{"base", "AdamW", "x"}, sampled("frozen", 2)});
  Forward next = forward;
  next.sequences.resize(1);
  Future later = submit(next);
  go_on_.count_down();
  reads.get();
  futures[0].get();
  later.get();
  futures[1].get();
  dispatcher_.reset();
  int64_t after = 0;
  for (const auto& batch : executor_.batches) {
    for (const Work& work : batch) after += work.id == later.id;
  }
  EXPECT_EQ(after, 1);
  EXPECT_EQ(executor_.batches.back().back().id, later.id);
}

// Many threads submit and cancel; every future gets an answer, and every tenant's state is what its
// operations that were not cancelled make of it, in their order.
TEST_F(Dispatched, ManyThreadsSubmitAndCancelAndNothingIsLost) {
  open({.token_budget = 64, .max_queued = 100000, .max_queued_total = 100000});
  constexpr int kThreads = 6, kOperations = 150;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      const std::string tenant = std::to_string(t);
      std::vector<Future> futures;
      std::vector<size_t> sequences;
      std::vector<bool> cancelled;
      futures.push_back(submit(Create{.tenant = tenant, .weight = 1.0 + t}));
      sequences.push_back(0);
      cancelled.push_back(false);
      for (uint64_t i = 0; i < kOperations; ++i) {
        const uint64_t draw = key_of(static_cast<uint64_t>(t), i);
        sequences.push_back(0);
        if (draw % 7 == 0) {
          futures.push_back(submit(Step{tenant}));
        } else if (draw % 7 == 1) {
          futures.push_back(submit(sampled(tenant, 1 + static_cast<int64_t>(draw % 5))));
        } else {
          sequences.back() = 1 + draw % 20;
          futures.push_back(submit(pass_of(tenant, sequences.back())));
        }
        cancelled.push_back(false);
        const size_t victim = (draw >> 20) % futures.size();
        if (draw % 3 == 0 && victim > 0) {
          if (dispatcher_->cancel(futures[victim].id)) cancelled[victim] = true;
        }
        if (draw % 11 == 0) dispatcher_->stats();
      }
      std::vector<std::string> want;
      for (size_t i = 0; i < futures.size(); ++i) {
        EXPECT_EQ(error_of(futures[i]), cancelled[i] ? "engine: cancelled" : "no error");
        for (size_t s = 0; s < sequences[i] && !cancelled[i]; ++s)
          want.push_back(std::to_string(futures[i].id) + "/" + std::to_string(s));
      }
      std::vector<std::string> got = state(tenant);
      std::erase_if(got, [](const std::string& s) { return s.starts_with("step"); });
      EXPECT_EQ(got, want);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& [tenant, stats] : dispatcher_->stats().tenants)
    EXPECT_EQ(stats.num_queued, 0) << tenant;
}

}  // namespace
}  // namespace twinkle::engine
