// Refusals, counts and errors of a Dispatcher.
#include <gtest/gtest.h>

#include <thread>

#include "twinkle/engine/schedule/dispatched_for_test.h"

namespace twinkle::engine {
namespace {

TEST_F(Dispatched, AFullQueueRefusesAllOfASubmissionAndSaysWhose) {
  open({.token_budget = 100, .max_queued = 3, .max_queued_total = 5});
  create("a");
  create("b");
  hold_batch();
  Future first = submit(pass_of("a", 1));
  in_batch_.wait();
  auto second = submit(pass_of("a", 1));
  const auto text = [&](std::vector<Operation> operations) {
    try {
      dispatcher_->submit(std::move(operations));
    } catch (const Error& e) {
      EXPECT_EQ(e.code, Code::kBusy);
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(text({pass_of("a", 1), pass_of("a", 1)}),
            "engine: tenant 'a' has 2 operations in its queue and submits 2, max_queued is 3; wait "
            "for some of their results");
  EXPECT_EQ(text({pass_of("b", 1), pass_of("b", 1), pass_of("c", 1), pass_of("c", 1)}),
            "engine: tenant 'b' submits 4 operations while 2 of all tenants are queued, "
            "max_queued_total is 5; try again later");
  EXPECT_EQ(dispatcher_->stats().tenants.at("a").num_queued, 2) << "nothing of them is queued";
  EXPECT_EQ(dispatcher_->stats().max_queued_total, 5);
  go_on_.count_down();
  first.get();
  second.get();
  EXPECT_EQ(text({pass_of("a", 1), pass_of("a", 1), pass_of("a", 1)}), "no error");
}

TEST_F(Dispatched, BytesOfOperationsAndOfResultsThatNobodyTookAreBounded) {
  constexpr int64_t kResult = 1'000'000;
  open({.token_budget = 100,
        .max_queued_bytes = 2 * kResult + 100'000,
        .max_queued_bytes_total = 3 * kResult + 100'000});
  create("a");
  create("b");
  executor_.result_bytes = kResult;
  hold_batch();
  const Future first = submit(pass_of("a", 1));
  in_batch_.wait();
  std::vector<Future> more;
  more.push_back(submit(pass_of("a", 1)));
  const auto text = [&](std::vector<Operation> operations) {
    try {
      for (Future& future : dispatcher_->submit(std::move(operations)))
        more.push_back(std::move(future));
    } catch (const Error& e) {
      EXPECT_EQ(e.code, Code::kBusy);
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_TRUE(text({pass_of("a", 1)}).starts_with("engine: tenant 'a' holds 200"));
  const int64_t held = dispatcher_->stats().queued_bytes;
  EXPECT_TRUE(text({pass_of("b", 1), pass_of("b", 1)}).starts_with("engine: all tenants hold 300"));
  EXPECT_EQ(dispatcher_->stats().queued_bytes, held) << "nothing of them is counted";
  EXPECT_EQ(text({pass_of("b", 1)}), "no error");
  EXPECT_TRUE(dispatcher_->cancel(more.back().id));
  EXPECT_EQ(dispatcher_->stats().queued_bytes, held) << "one that failed holds nothing";
  go_on_.count_down();
  first.wait();
  more[0].wait();
  EXPECT_EQ(text({pass_of("a", 1)}), "no error") << "what they took, they take no more";
  more.back().wait();
  EXPECT_GT(dispatcher_->stats().queued_bytes, 0) << "three results wait";
  executor_.result_bytes = 0;
  more[0].get();
  more.clear();
  EXPECT_EQ(dispatcher_->stats().queued_bytes, num_bytes(Result(ForwardResult{}))) << "the first's";
}

TEST_F(Dispatched, AnOperationThatCanNeverFitIsRefusedForGood) {
  open({.token_budget = 100, .max_queued_bytes = 100'000});
  try {
    submit(pass_of("a", 1, 100'000));
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Code::kInvalid);
    EXPECT_NE(std::string(e.what()).find("submit less at once"), std::string::npos) << e.what();
  }
}

TEST_F(Dispatched, OperationsThatCanNeverFitTogetherAreRefusedForGood) {
  open({.token_budget = 100, .max_queued_bytes = 100'000});
  create("a");
  executor_.result_bytes = 60'000;
  try {
    dispatcher_->submit({pass_of("a", 1), pass_of("a", 1)});
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Code::kInvalid);
    EXPECT_NE(std::string(e.what()).find("submit fewer at once"), std::string::npos) << e.what();
  }
  submit(pass_of("a", 1)).get();
}

TEST_F(Dispatched, AnInspectLargerThanTheLimitIsTakenAsLongAsItsTenantHoldsNothingElse) {
  open({.token_budget = 100, .max_queued_bytes = 2'000});
  create("a");
  submit(Step{"a", "AdamW", std::string(1'500, 'x')}).get();
  submit(Step{"a", "AdamW", std::string(1'500, 'y')}).get();
  Future first = submit(Inspect{"a"});
  first.wait();
  EXPECT_EQ(dispatcher_->stats().queued_bytes, 2'000) << "it counts as the limit";
  EXPECT_EQ(std::get<InspectResult>(first.get()).tensors.size(), 2u);
}

TEST_F(Dispatched, AfterClosingNothingIsQueuedAndNothingCanBeCancelled) {
  open();
  create("a");
  hold_batch();
  Future begun = submit(pass_of("a", 1));
  in_batch_.wait();
  Future waiting = submit(Step{"a"});
  std::thread closing([this] { dispatcher_->close(); });
  wait_until_closed();
  go_on_.count_down();
  closing.join();
  EXPECT_FALSE(dispatcher_->cancel(waiting.id));
  EXPECT_EQ(dispatcher_->stats().num_queued, 0);
  EXPECT_EQ(error_of(begun), "engine: closed");
  EXPECT_EQ(error_of(waiting), "engine: closed");
}

TEST_F(Dispatched, ClosingStopsABatchAtItsNextLayerAndFailsWhatWaits) {
  open();
  create("a");
  create("b");
  hold_batch();
  executor_.layers = 40;
  auto begun = dispatcher_->submit({pass_of("a", 3), pass_of("a", 2), pass_of("b", 35)});
  in_batch_.wait();
  auto waiting = dispatcher_->submit({pass_of("a", 1), pass_of("b", 1), Step{"b"}});
  std::thread closing([this] { dispatcher_->close(); });
  wait_until_closed();
  EXPECT_TRUE(dispatcher_->cancel(begun[2].id));
  go_on_.count_down();
  closing.join();
  EXPECT_EQ(executor_.num_layers, 0);
  EXPECT_EQ(executor_.num_batches, 1);
  for (size_t i : {0, 1}) EXPECT_EQ(error_of(begun[i]), "engine: closed") << i;
  EXPECT_EQ(error_of(begun[2]), "engine: cancelled") << "as cancel() has said";
  for (Future& future : waiting) EXPECT_EQ(error_of(future), "engine: closed");
}

TEST_F(Dispatched, ClosingStopsASampleAtItsNextStep) {
  open();
  create("a");
  std::latch sampling(1), go_on(1);
  executor_.on_step = [&] {
    if (held_.exchange(true)) return;
    sampling.count_down();
    go_on.wait();
  };
  Future endless = submit(sampled("a", 1'000'000));
  sampling.wait();
  std::thread closing([this] { dispatcher_->close(); });
  wait_until_closed();
  go_on.count_down();
  closing.join();
  EXPECT_EQ(error_of(endless), "engine: closed");
  EXPECT_EQ(executor_.num_steps, 1);
}

TEST_F(Dispatched, WhenBothWaitTrainingAndSamplingShareTheTime) {
  DispatcherOptions options{.token_budget = 100};
  options.sampling_share = 0.25;
  open(options);
  create("a");
  create("b");
  executor_.on_batch = [this] { time_ = time_ + 2.0; };
  executor_.on_step = [this] { time_ = time_ + 0.1; };
  // Both long enough that neither ends before the other.
  auto futures = dispatcher_->submit({sampled("a", 1000), pass_of("b", 1500)});
  futures[1].get();
  const Stats stats = dispatcher_->stats();
  EXPECT_NEAR(stats.sampling_seconds / (stats.sampling_seconds + stats.training_seconds), 0.25,
              0.01);
  futures[0].get();
  EXPECT_EQ(dispatcher_->stats().num_steps, 1000);
}

TEST_F(Dispatched, WhenASamplingStepThrowsTheNewestSamplePays) {
  open();
  executor_.on_step = [&] {
    time_ = time_ + 1;  // so that both have begun before the second step
    executor_.failing_steps = executor_.num_steps == 2 ? 1 : 0;
  };
  auto futures = dispatcher_->submit(
      {Create{"a"}, Create{"b"}, ZeroGrad{"b"}, sampled("a", 5), sampled("b", 5)});
  EXPECT_EQ(error_of(futures[3]), "no error");
  EXPECT_EQ(error_of(futures[4]), "null: no memory");
}

TEST_F(Dispatched, StatisticsCountTheTokensAndTenantsOfBatches) {
  open();
  for (const char* tenant : {"a", "b"}) create(tenant);
  hold_batch();
  auto futures = dispatcher_->submit({pass_of("a", 3), pass_of("b", 4), pass_of("b", 30)});
  in_batch_.wait();
  EXPECT_EQ(dispatcher_->stats().num_queued, 3);
  go_on_.count_down();
  for (Future& future : futures) future.get();
  const Stats stats = dispatcher_->stats();
  EXPECT_EQ(stats.num_queued, 0);
  EXPECT_EQ(stats.batches.num_tokens, 370);
  ASSERT_EQ(std::ssize(stats.last_batches), stats.num_batches);
  EXPECT_EQ(stats.last_batches[0].num_tokens, 70);
  EXPECT_EQ(stats.last_batches[0].num_tenants, 2);
  EXPECT_EQ(stats.last_batches.back().num_tenants, 1);
  EXPECT_EQ(stats.batches.num_tenants, stats.num_batches + 1);
  submit(pass_of("a", 300)).get();
  EXPECT_EQ(dispatcher_->stats().last_batches.size(), kLastBatches);
}

TEST_F(Dispatched, ABatchThatThrowsFailsItsOperationsAloneAndUndoesThem) {
  open();
  create("a");
  create("b");
  submit(pass_of("a", 1)).get();
  bool thrown = false;
  executor_.on_batch = [&] {
    if (!std::exchange(thrown, true)) throw std::bad_alloc();
  };
  auto futures =
      dispatcher_->submit({pass_of("a", 2), pass_of("a", 3), pass_of("b", 30), pass_of("b", 1)});
  for (size_t i : {0, 1, 2}) EXPECT_THROW(futures[i].get(), std::bad_alloc) << i;
  EXPECT_EQ(error_of(futures[3]), "no error");
  EXPECT_EQ(state("a").size(), 1u);
  EXPECT_EQ(state("b").size(), 1u);
}

TEST_F(Dispatched, OptionsOutsideTheirRangeAreNamed) {
  const auto text = [&](DispatcherOptions options) {
    try {
      Dispatcher(options, executor_);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  const auto integer = [](const std::string& most) {
    return ", it must be an integer of at least 1, at most " + most;
  };
  const std::string tokens = integer("2147483647"), bytes = integer("1125899906842624");
  EXPECT_EQ(text({.token_budget = 0}), "engine: token_budget is 0" + tokens);
  EXPECT_EQ(text({.max_queued = 0}), "engine: max_queued is 0" + tokens);
  EXPECT_EQ(text({.max_queued_total = -1}), "engine: max_queued_total is -1" + tokens);
  EXPECT_EQ(text({.max_queued_bytes = 0}), "engine: max_queued_bytes is 0" + bytes);
  EXPECT_EQ(text({.max_queued_bytes_total = -1}), "engine: max_queued_bytes_total is -1" + bytes);
  EXPECT_EQ(text({.sampling_share = 0}),
            "engine: sampling_share is 0, it must be a number above 0, below 1");
  EXPECT_EQ(text({.sampling_share = 1}),
            "engine: sampling_share is 1, it must be a number above 0, below 1");
}

TEST_F(Dispatched, ASampleThatOutlivesItsTenantLeavesNothingInTheStatistics) {
  open();
  create("gone");
  auto futures = dispatcher_->submit({sampled("gone", 50), Delete{"gone"}});
  for (Future& future : futures) future.get();
  EXPECT_FALSE(dispatcher_->stats().tenants.contains("gone"));
  create("gone");
  submit(sampled("gone", 2)).get();
  EXPECT_EQ(dispatcher_->stats().tenants.at("gone").num_sampled, 3) << "of a null model's result";
}

}  // namespace
}  // namespace twinkle::engine
