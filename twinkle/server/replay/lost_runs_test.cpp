// Starts after the operator has removed checkpoints.
#include <chrono>
#include <filesystem>
#include <thread>

#include "twinkle/base/file.h"
#include "twinkle/server/service_for_test.h"

namespace twinkle::server {
namespace {

namespace fs = std::filesystem;

class LostRunsTest : public ServiceTest {
 protected:
  LostRunsTest() { go_on(); }
  void restart() {
    open();
    go_on();
  }
  // A run that began with another's checkpoint, whose folder is "a" of that run.
  std::string loaded_from(const std::string& run) {
    const Response saved =
        result(post("/api/v1/save_weights", {{"model_id", run}, {"seq_id", 1}, {"path", "a"}}));
    const Json body = {{"session_id", session()},
                       {"model_seq_id", 0},
                       {"path", text(saved, "path")},
                       {"optimizer", true}};
    return text(result(post("/api/v1/load_weights", body)), "model_id");
  }
  fs::path checkpoints() const { return dir_ / "checkpoints"; }
  std::string error_of(const Response& ack) { return text(failure(ack), "error"); }
};

TEST_F(LostRunsTest, ARunWhoseCheckpointWasRemovedIsLostByNameAndTheOthersGoOn) {
  const std::string first = run(), id = loaded_from(first);
  const Response done_before = train(id, 1), waits = train(id, 3);
  const std::string told = result(done_before).body;
  const Response published =
      post("/api/v1/save_weights_for_sampler", {{"model_id", id}, {"seq_id", 2}});
  const std::string sampler = text(result(published), "sampling_session_id");
  result(waits);
  const Response unended = train(id, 5);  // for which 4 has not come
  fs::remove_all(checkpoints());
  restart();
  const std::string why = "server: the run '" + id + "' is lost: the checkpoint in " +
                          (checkpoints() / first / "weights/a").string() +
                          ", with which it began, was removed; put it back and start the server "
                          "again, or make another run";
  EXPECT_EQ(services_->operations.lost(), (std::map<std::string, std::string>{{id, why}}));
  const std::string owner = services_->runs.find(id)->owner;
  EXPECT_EQ(services_->amounts.num_runs(*services_, owner), 1) << "the first";
  EXPECT_EQ(result(done_before).body, told);
  // A client knows it by its path.
  const std::string told_why = "server: the run '" + id + "' is lost: the checkpoint in tinker://" +
                               first + "/weights/a" + why.substr(why.find(", with which"));
  EXPECT_EQ(error_of(train(id, 4)), told_why);
  EXPECT_EQ(error_of(unended), told_why);
  EXPECT_EQ(error_of(post("/api/v1/asample",
                          {{"sampling_session_id", sampler},
                           {"seq_id", 0},
                           {"prompt", {{"chunks", {{{"tokens", {1}}, {"type", "encoded_text"}}}}}},
                           {"sampling_params", {{"max_tokens", 3}}}})),
            told_why);
  result(train(first, 2));
  EXPECT_EQ(done(first).size(), 1U);
}

TEST_F(LostRunsTest, ARunIsThereAgainWhenItsCheckpointIsPutBack) {
  const std::string id = loaded_from(run());
  result(train(id, 1));
  fs::rename(checkpoints(), dir_ / "aside");
  restart();
  failure(train(id, 2));
  fs::rename(dir_ / "aside", checkpoints());
  restart();
  EXPECT_TRUE(services_->operations.lost().empty());
  failure(step(id, 3));  // a request of its window failed
  result(train(id, 4));
  EXPECT_TRUE(parse(result(step(id, 5))).contains("metrics"));
  EXPECT_EQ(done(id).size(), 3U);
}

TEST_F(LostRunsTest, ARunThatHasASnapshotNeedsItsCheckpointNoMore) {
  options_.snapshots.every = std::chrono::milliseconds(0);
  restart();
  const std::string id = loaded_from(run());
  result(train(id, 1)), result(step(id, 2));
  EXPECT_TRUE(loop_->run_until([&] { return is_there(dir_ / "snapshots" / id / "2"); }));
  EXPECT_TRUE(loop_->run_until([&] { return services_->snapshots.saving(id) < 0; }));
  fs::remove_all(checkpoints());
  restart();
  EXPECT_TRUE(services_->operations.lost().empty());
  result(train(id, 3));
  EXPECT_EQ(done(id).size(), 3U);
}

TEST_F(LostRunsTest, ALostRunHoldsNoStateUpAndStaysLost) {
  options_.truncation.journal_bytes = 1;
  options_.snapshots.every = std::chrono::hours(1);
  const std::string id = loaded_from(run());
  result(train(id, 1));
  fs::remove_all(checkpoints());
  restart();
  const int64_t before = services_->truncation.num_taken();
  for (int i = 0; i < 200 && services_->truncation.num_taken() < before + 2; ++i) {
    session();  // a record
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    loop_->run();
  }
  EXPECT_GE(services_->truncation.num_taken(), before + 2);
  restart();
  EXPECT_EQ(error_of(train(id, 2)), "server: the run '" + id +
                                        "' is lost: the checkpoint with which it began was "
                                        "removed; make another run");
}

}  // namespace
}  // namespace twinkle::server
