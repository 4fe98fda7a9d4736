// The core's rules by its own calls: order, windows, results, and what a start makes of a journal.
#include "twinkle/serving/core/core.h"

#include <fstream>

#include "twinkle/base/error_for_test.h"
#include "twinkle/base/file.h"
#include "twinkle/serving/core/core_for_test.h"

namespace twinkle::server::core {
namespace {

using Strings = std::vector<std::string>;

TEST_F(CoreTest, ARunTrainsInTheOrderOfItsNumbersHoweverTheyCome) {
  const std::string id = make_run();
  const std::string second = step(id, 2), first = train(id, 1);
  EXPECT_EQ(result(first)->error, "");
  EXPECT_EQ(result(second)->error, "");
  EXPECT_EQ(done(id), (Strings{"2/0", "step"}));
  EXPECT_EQ(train(id, 1), first) << "the same number is the same request";
}

TEST_F(CoreTest, AFailureDropsItsWindowAndTheNextOneIsWhole) {
  const std::string id = make_run();
  train(id, 1), train(id, 2, "fail");
  const Result dropped = result(step(id, 3));
  EXPECT_NE(dropped->error.find("seq_id 2"), std::string::npos) << dropped->error;
  EXPECT_TRUE(dropped->is_users);
  train(id, 4);
  EXPECT_EQ(result(step(id, 5))->error, "");
}

TEST_F(CoreTest, WhatIsWrongWithANumberedRequestIsItsResult) {
  const std::string id = make_run();
  const std::string wrong = run(core_->submit(
      {.run = id, .seq_id = 1, .breaks_window = true}, [](const core::Run&) -> engine::Operation {
        fail(Code::kInvalid, "server: data[0] has no target_tokens");
      }));
  EXPECT_EQ(result(wrong)->error, "server: data[0] has no target_tokens");
  EXPECT_NE(result(step(id, 2))->error, "");
  start();
  EXPECT_EQ(result(wrong)->error, "server: data[0] has no target_tokens");
  train(id, 3);
  EXPECT_EQ(result(step(id, 4))->error, "");
}

TEST_F(CoreTest, NumbersThatCannotBeTakenAreRefusedAtOnce) {
  const std::string id = make_run();
  expect_error("seq_id is 0", [&] { train(id, 0); });
  expect_error("at most 4096", [&] { train(id, 1 + kMaxAhead + 1); });
  expect_error("nobody", [&] { train("nobody", 1); });
  run(core_->commit(FinishSession{core_->domain().run(id)->session}));
  expect_error("finished", [&] { train(id, 1); });
}

TEST_F(CoreTest, AStartDoesAgainWhatHadEndedAndWhatHadNot) {
  const std::string id = make_run();
  const std::string first = train(id, 1), second = step(id, 2), third = train(id, 3);
  for (const std::string& future : {first, second, third}) result(future);
  const std::string bytes = result(first)->result;
  start();
  EXPECT_EQ(result(first)->result, bytes);
  EXPECT_EQ(result(step(id, 4))->error, "");
  EXPECT_EQ(done(id), (Strings{"2/0", "step", "4/0", "step"}));
  EXPECT_EQ(core_->num_done_again(), 3);
  EXPECT_TRUE(troubles_.empty());
}

TEST_F(CoreTest, ASnapshotBoundsWhatAStartDoesAgain) {
  options_.saving.again_seconds = 0;
  start();
  const std::string id = make_run();
  for (int64_t seq_id = 1; seq_id <= 40; ++seq_id) result(train(id, seq_id));
  ASSERT_TRUE(until([&] { return core_->domain().run(id)->snapshot.seq_id == 40; }));
  start();
  EXPECT_EQ(result(step(id, 41))->error, "");
  EXPECT_EQ(core_->num_done_again(), 0);
  EXPECT_EQ(done(id).size(), 41U) << "gradients that no step has taken are in it";
}

TEST_F(CoreTest, WhatHadNotEndedWhenItWasKilledIsDoneByTheNextStart) {
  std::atomic<bool> waits = true;
  on_batch_ = [&] { waits.wait(true); };
  start();
  const std::string id = make_run();
  const std::string first = train(id, 1), second = step(id, 2), third = train(id, 4);
  const auto end = [&] { waits = false, waits.notify_all(); };
  core_->close();  // nothing is told from here on
  end();
  start();
  EXPECT_EQ(result(first)->error, "");
  EXPECT_EQ(result(second)->error, "");
  EXPECT_EQ(core_->why_waits(third), "seq_id 4 waits for seq_id 3, which has not come");
  train(id, 3);
  EXPECT_EQ(result(third)->error, "");
}

TEST_F(CoreTest, AStateTakesThePlaceOfRecordsAndCarriesWhatIsNeeded) {
  options_.saving.journal_bytes = 1;
  start();
  const std::string id = make_run();
  const std::string first = train(id, 1), early = train(id, 3);
  result(first);
  for (int64_t n = 0; n < 3; ++n) {
    session();
    ASSERT_TRUE(until([&] {
      session();
      loop_->pass(std::chrono::seconds(1));
      return core_->num_states() > n;
    }));
  }
  const std::string bytes = result(first)->result;
  start();
  EXPECT_EQ(result(first)->result, bytes) << "read back from the state";
  result(train(id, 2));
  EXPECT_EQ(result(early)->error, "");
  EXPECT_EQ(core_->num_done_again(), 1);
  EXPECT_EQ(done(id).size(), 3U);
}

TEST_F(CoreTest, ASamplerOfAVersionSamplesItsFolderAfterASnapshot) {
  options_.saving.again_seconds = 0;
  start();
  const std::string id = make_run();
  result(train(id, 1));
  result(publish(id, 2));
  result(step(id, 3));
  result(publish(id, 4));
  ASSERT_TRUE(until([&] { return core_->domain().run(id)->snapshot.versions.size() == 2; }));
  const auto sample = [&](const std::string& sampler, int64_t seq_id) {
    engine::Sample what{.prompts = {{1, 2}}, .params = {{}}};
    what.params[0].max_tokens = 2;
    return result(run(core_->sample({.sampler = sampler, .seq_id = seq_id}, what)));
  };
  EXPECT_EQ(sample(id + ":sample:2", 0)->error, "");
  EXPECT_EQ(sample(id + ":sample:4", 0)->error, "");
  start();
  EXPECT_EQ(sample(id + ":sample:2", 1)->error, "");
  EXPECT_EQ(sample(id + ":sample:4", 1)->error, "");
  EXPECT_EQ(core_->domain().sampler(id + ":sample:4")->came, (std::vector<int64_t>{0, 1}));
}

TEST_F(CoreTest, WhatIsDeletedIsGoneFromTheDiskAlsoBehindAKill) {
  const std::string id = make_run();
  result(train(id, 1));
  result(save_as(id, 2, "a"));
  result(save_as(id, 3, "b"));
  const auto folder = [&](const std::string& name) {
    return dir_ / "checkpoints" / id / "weights" / name;
  };
  ASSERT_TRUE(is_there(folder("a")));
  ASSERT_NE(core_->domain().checkpoint(id + "/weights/a"), nullptr);
  run(core_->commit(DeleteCheckpoint{id + "/weights/a"}));
  EXPECT_EQ(core_->domain().checkpoint(id + "/weights/a"), nullptr);
  EXPECT_TRUE(until([&] { return !is_there(folder("a")); }));
  run(core_->commit(DeleteRun{id}));
  kill();  // perhaps before the folders are gone
  start();
  EXPECT_TRUE(until([&] { return !is_there(folder("b")); }));
  EXPECT_EQ(core_->domain().run(id), nullptr);
}

TEST_F(CoreTest, AFutureThatHasNoResultIsWaitedForAndThenComeAgain) {
  const std::string id = make_run();
  const std::string early = train(id, 2);
  std::optional<Result> polled;
  Tasks tasks;
  const auto poll = [&]() -> Task<> { polled = co_await core_->wait(early); };
  tasks.start(poll());
  loop_->pass(std::chrono::seconds(31));
  ASSERT_TRUE(polled.has_value());
  EXPECT_EQ(*polled, nullptr);
  EXPECT_EQ(core_->futures().num_held(), 0);
  run(core_->commit(FinishSession{core_->domain().run(id)->session}));
  EXPECT_NE(result(early)->error.find("seq_id 1"), std::string::npos);
}

}  // namespace
}  // namespace twinkle::server::core
