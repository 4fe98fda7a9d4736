// Operations that end off the dispatcher's thread.
#include "twinkle/engine/background/background.h"

#include <unistd.h>

#include "twinkle/engine/schedule/dispatched_for_test.h"

namespace twinkle::engine {
namespace {

class SavesOffTheThread : public Dispatched {
 protected:
  SavesOffTheThread() {
    executor_.on_write = [this] {
      if (std::this_thread::get_id() == engines_) ++on_engines_thread_;
      if (!begun_.exchange(true)) writing_.count_down();
      if (failing_) fail(Code::kInternal, "null: the disk is full");
      if (!let_go_) go_on_.wait();
    };
    executor_.on_batch = [this] {
      engines_ = std::this_thread::get_id();
      while (is_busy_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
  }
  ~SavesOffTheThread() override {
    if (!let_go_.exchange(true)) go_on_.count_down();
    dispatcher_.reset();
    std::filesystem::remove_all(folder_);
  }
  void let_go() {
    let_go_ = true;
    go_on_.count_down();
  }
  Save save(const std::string& tenant, const std::string& name = "x") {
    return {.tenant = tenant, .directory = folder_ + "/" + name};
  }
  static bool has_ended(const Future& future) {
    return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  const std::string folder_ = testing::TempDir() + "background_test_" + std::to_string(::getpid());
  std::atomic<bool> let_go_ = false, failing_ = false, begun_ = false, is_busy_ = false;
  std::atomic<int> on_engines_thread_ = 0;
  std::atomic<std::thread::id> engines_{};
  std::latch writing_{1};
};

TEST_F(SavesOffTheThread, ItsTenantAndOthersGoOnWhileASaveIsWrittenAndItHoldsWhatWasThen) {
  open();
  create("me");
  create("other");
  submit(pass_of("me", 1)).get();
  Future saved = submit(save("me"));
  writing_.wait();
  submit(Step{"me"}).get();
  submit(pass_of("other", 2)).get();
  submit(sampled("me", 3)).get();
  EXPECT_FALSE(has_ended(saved));
  EXPECT_EQ(dispatcher_->stats().tenants.at("me").num_queued, 1);
  EXPECT_FALSE(dispatcher_->cancel(saved.id)) << "it can't be stopped any more";
  let_go();
  EXPECT_EQ(std::get<SaveResult>(saved.get()).directory, save("me").directory);
  EXPECT_EQ(dispatcher_->stats().num_queued, 0);
  submit(Create{.tenant = "copy", .directory = save("me").directory}).get();
  EXPECT_EQ(state("copy").size(), 1U) << "without the step";
  EXPECT_EQ(state("me").size(), 2U);
  EXPECT_EQ(on_engines_thread_, 0);
}

TEST_F(SavesOffTheThread, WhatReadsAFolderThatIsBeingWrittenWaitsForItAndNobodyElseDoes) {
  open();
  create("me");
  submit(pass_of("me", 1)).get();
  Future saved = submit(save("me"));
  writing_.wait();
  Future made = submit(Create{.tenant = "copy", .directory = save("me").directory});
  Future stopped = submit(Create{.tenant = "never", .directory = save("me").directory});
  submit(pass_of("me", 1)).get();
  create("other");
  EXPECT_FALSE(has_ended(made));
  EXPECT_TRUE(dispatcher_->cancel(stopped.id));
  EXPECT_EQ(error_of(stopped), "engine: cancelled");
  let_go();
  made.get();
  EXPECT_EQ(state("copy").size(), 1U);
}

TEST_F(SavesOffTheThread, WhatReadsItsFolderWaitsAlsoWhereBothCouldBeginInOneTurn) {
  open();
  create("me");
  submit(pass_of("me", 1)).get();
  is_busy_ = true;
  Future batch = submit(pass_of("other", 1));
  while (executor_.num_batches < 2) std::this_thread::yield();
  Future saved = submit(save("me"));
  Future made = submit(Create{.tenant = "copy", .directory = save("me").directory});
  is_busy_ = false;
  writing_.wait();
  create("third");
  EXPECT_FALSE(has_ended(made));
  let_go();
  made.get();
  EXPECT_EQ(state("copy").size(), 1U);
}

TEST_F(SavesOffTheThread, OutcomesAreToldOnTheEnginesThreadInTheOrderOfTheEnds) {
  open();
  create("me");
  std::vector<int> told;  // by the engine's thread alone
  std::vector<Operation> operations{save("me", "1"), save("me", "2"), Step{"me"}};
  std::vector<Accepted> accepted = dispatcher_->accept(operations);
  std::vector<OnDone> on_done;
  for (const int i : {1, 2, 3})
    on_done.push_back([&told, i](const Outcome&) { told.push_back(i); });
  dispatcher_->submit(std::move(accepted), std::move(on_done));
  writing_.wait();
  submit(ZeroGrad{"me"}).get();  // after the step
  let_go();
  while (dispatcher_->stats().num_queued > 0) std::this_thread::yield();
  submit(ZeroGrad{"me"}).get();
  EXPECT_EQ(told, (std::vector{3, 1, 2}));
}

TEST_F(SavesOffTheThread, ADiskThatRefusesFailsThatSaveAlone) {
  open();
  create("me");
  failing_ = true;
  Future failed = submit(save("me"));
  EXPECT_EQ(error_of(failed), "null: the disk is full");
  failing_ = false;
  let_go();
  submit(save("me")).get();
  submit(Create{.tenant = "copy", .directory = save("me").directory}).get();
}

TEST_F(SavesOffTheThread, ItsTenantMayGoAndComeAgainMeanwhile) {
  open();
  create("me");
  submit(pass_of("me", 1)).get();
  Future saved = submit(save("me"));
  writing_.wait();
  submit(Delete{"me"}).get();
  create("me");
  let_go();
  saved.get();
  EXPECT_TRUE(state("me").empty());
  submit(Create{.tenant = "copy", .directory = save("me").directory}).get();
  EXPECT_EQ(state("copy").size(), 1U);
}

TEST_F(SavesOffTheThread, ClosingLetsTheOneThatIsBeingWrittenEndAndFailsThoseBehindIt) {
  open();
  create("me");
  Future first = submit(save("me", "1")), second = submit(save("me", "2"));
  submit(Step{"me"}).get();
  writing_.wait();
  std::thread closing([this] { dispatcher_->close(); });
  wait_until_closed();
  EXPECT_FALSE(has_ended(first));
  let_go();
  closing.join();
  first.get();
  EXPECT_EQ(error_of(second), "engine: closed");
  EXPECT_TRUE(std::filesystem::exists(save("me", "1").directory));
  EXPECT_FALSE(std::filesystem::exists(save("me", "2").directory));
}

}  // namespace
}  // namespace twinkle::engine
