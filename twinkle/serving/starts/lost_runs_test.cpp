// Starts after the operator has removed checkpoints.
#include <filesystem>

#include "twinkle/base/file.h"
#include "twinkle/serving/core/quotas.h"
#include "twinkle/serving/starts/starts_for_test.h"

namespace twinkle::server {
namespace {

namespace fs = std::filesystem;

class LostRunsTest : public StartsTest {
 protected:
  // A run that began with another's checkpoint, whose folder is "a" of that run. Without a
  // snapshot, as a kill may leave it.
  std::string loaded_from(const std::string& run) {
    const std::string path = text(result(save(run, 1)), "path");
    backend_->on_check = [](const engine::Operation& o) {
      const auto* save = std::get_if<engine::Save>(&o);
      require(!save || !save->as_is, Code::kInvalid, "null: no snapshot");
    };
    return text(result(load(path)), "model_id");
  }
  fs::path checkpoints() const { return dir_ / "checkpoints"; }
};

TEST_F(LostRunsTest, ARunWhoseCheckpointWasRemovedIsLostByNameAndTheOthersGoOn) {
  const std::string first = run(), id = loaded_from(first);
  const Response done_before = train(id, 1), waits = train(id, 3);
  const std::string told = result(done_before).body;
  const std::string sampler = text(result(publish(id, 2)), "sampling_session_id");
  result(waits);
  const Response unended = train(id, 5);  // for which 4 has not come
  fs::remove_all(checkpoints());
  restart();
  settle();
  const std::string why = "server: the run '" + id + "' is lost: the checkpoint in " +
                          (checkpoints() / first / "weights/a").string() +
                          ", with which it began, was removed; put it back and start the server "
                          "again, or make another run";
  EXPECT_EQ(core_->domain().run(id)->lost, why);
  EXPECT_EQ(core_->domain().run(first)->lost, "");
  const std::string owner = core_->domain().run(id)->owner;
  EXPECT_EQ(core::num_runs(*core_, owner), 1) << "the first";
  EXPECT_EQ(result(done_before).body, told);
  // A client knows it by its path.
  const std::string told_why = "server: the run '" + id + "' is lost: the checkpoint in tinker://" +
                               first + "/weights/a" + why.substr(why.find(", with which"));
  EXPECT_EQ(error_of(train(id, 4)), told_why);
  EXPECT_EQ(error_of(unended), told_why);
  EXPECT_EQ(error_of(sample(sampler, 0)), told_why);
  result(train(first, 2));
  EXPECT_EQ(done(first).size(), 1U);
}

TEST_F(LostRunsTest, WhatItHadNotDoneFailsByNameAfterEachStart) {
  std::atomic<bool> go = false;
  const std::string id = loaded_from(run());
  executor_->on_batch = [&] { go.wait(false); };
  const Response first = train(id, 1), second = step(id, 2);
  core_->close();
  go = true;
  go.notify_all();
  fs::remove_all(checkpoints());
  for (int i = 0; i < 2; ++i) {
    restart();
    EXPECT_NE(error_of(first).find("' is lost: "), std::string::npos);
    EXPECT_NE(error_of(second).find("' is lost: "), std::string::npos);
  }
}

TEST_F(LostRunsTest, ARunIsThereAgainWhenItsCheckpointIsPutBack) {
  const std::string id = loaded_from(run());
  result(train(id, 1));
  fs::rename(checkpoints(), dir_ / "aside");
  restart();
  failure(train(id, 2));
  fs::remove_all(checkpoints());
  fs::rename(dir_ / "aside", checkpoints());
  restart();
  settle();
  EXPECT_EQ(core_->domain().run(id)->lost, "");
  failure(step(id, 3));  // a request of its window failed
  result(train(id, 4));
  EXPECT_TRUE(parse(result(step(id, 5))).contains("metrics"));
  EXPECT_EQ(done(id).size(), 3U);
}

TEST_F(LostRunsTest, ARunThatHasASnapshotNeedsItsCheckpointNoMore) {
  const std::string id = loaded_from(run());
  backend_->on_check = {};
  result(train(id, 1)), result(step(id, 2));
  run_saves();
  ASSERT_EQ(saved(id), 2);
  fs::remove_all(checkpoints());
  restart();
  result(train(id, 3));
  EXPECT_EQ(done(id).size(), 3U);
}

TEST_F(LostRunsTest, ALoadedRunIsSavedBeforeItHasDoneAnything) {
  const std::string first = run(), path = text(result(save(first, 1)), "path");
  const std::string id = text(result(load(path)), "model_id");
  EXPECT_TRUE(is_saved(id, 0));
  fs::remove_all(checkpoints());
  restart();
  result(train(id, 1));
  EXPECT_EQ(done(id).size(), 1U);
}

TEST_F(LostRunsTest, ALostRunHoldsNoStateUpAndStaysLost) {
  options_.saving.journal_bytes = 1;
  restart();
  const std::string id = loaded_from(run());
  result(train(id, 1));
  fs::remove_all(checkpoints());
  for (int i = 0; i < 2; ++i) {
    restart();
    EXPECT_TRUE(compact());
    EXPECT_NE(error_of(train(id, 2 + i)).find("' is lost: the checkpoint in tinker://"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace twinkle::server
