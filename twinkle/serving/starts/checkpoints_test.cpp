// Checkpoints of runs and samplers, as the service reads them: beside the thread that serves, and
// damaged or gone ones are told by name.
#include <atomic>
#include <filesystem>
#include <thread>

#include "twinkle/base/file.h"
#include "twinkle/serving/starts/starts_for_test.h"

namespace twinkle::server {
namespace {

namespace fs = std::filesystem;

class CheckpointsTest : public StartsTest {
 protected:
  void hold() {
    executor_->on_batch = [this] {
      while (!go_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
  }
  // Counts from here on whose checkpoints the engine is asked to take, and on which thread.
  void count() {
    backend_->on_check = [this, here = std::this_thread::get_id()](const engine::Operation& o) {
      const auto* create = std::get_if<engine::Create>(&o);
      if (!create || create->directory.empty()) return;
      ++num_read_;
      if (std::this_thread::get_id() == here) ++num_read_here_;
    };
  }
  // A new checkpoint's path.
  std::string keep(const std::string& run, int64_t seq_id) {
    const Response ack =
        post("/api/v1/save_weights_for_sampler",
             {{"model_id", run}, {"seq_id", seq_id}, {"path", "c" + std::to_string(seq_id)}}, key_);
    return text(result(ack, key_), "path");
  }
  Response sampler(const std::string& session, int64_t number, const std::string& path) {
    return sampler_of(session, number, "model_path", path, key_);
  }
  // A sample fails by what the engine says of this checkpoint's folder.
  void expect_damaged(const Response& ack, const std::string& path) {
    ASSERT_EQ(ack.status, 200) << ack.body;
    const Response failed = failure(ack, key_);
    EXPECT_EQ(text(failed, "error"), "null: " + path + " is damaged");
    EXPECT_EQ(text(failed, "category"), "server");
  }

  std::string key_ = "tml-a";
  std::atomic<bool> go_ = false;
  std::atomic<int> num_read_ = 0, num_read_here_ = 0;
};

TEST_F(CheckpointsTest, TheFilesOfALoadAreReadBesideTheThreadThatServes) {
  const std::string id = run();
  result(save(id, 1));
  count();
  result(post(
      "/api/v1/load_weights",
      {{"session_id", session()}, {"model_seq_id", 0}, {"path", "tinker://" + id + "/weights/a"}}));
  EXPECT_EQ(num_read_, 1);
  EXPECT_EQ(num_read_here_, 0);
}

TEST_F(CheckpointsTest, OneThatIsGoneIsTheOperatorsWhoAloneIsToldWhereItWas) {
  const std::string id = run(), path = "tinker://" + id + "/weights/a";
  result(save(id, 1));
  const std::string told = "json: cannot open " +
                           (dir_ / "checkpoints" / id / "weights/a/adapter_config.json").string() +
                           ": No such file or directory";
  backend_->on_check = [&](const engine::Operation& o) {
    require(!std::holds_alternative<engine::Load>(o), Code::kNotFound, told);
  };
  troubles_.clear();
  const std::string s = session();
  const Response failed =
      failure(post("/api/v1/load_weights",
                   {{"session_id", s}, {"model_seq_id", 0}, {"path", path}, {"optimizer", true}}));
  EXPECT_EQ(text(failed, "error"), "server: " + path +
                                       " cannot be read: its folder, or a file in it, is gone; the "
                                       "operator can put it back");
  EXPECT_EQ(text(failed, "category"), "server");
  EXPECT_EQ(troubles_, std::vector<std::string>{s + ":train:0:0 failed: " + told});
}

TEST_F(CheckpointsTest, ThoseOfSamplersAreReadThereOnceAndByTheFirstSampleAfterAStart) {
  const std::string id = run(), s = session();
  const std::string path = keep(id, 1);
  count();
  std::vector<std::shared_ptr<std::optional<Response>>> made;
  for (int64_t n = 0; n < 3; ++n)
    made.push_back(
        send(request("/api/v1/create_sampling_session",
                     boost::json::serialize(JsonObject{
                         {"session_id", s}, {"sampling_session_seq_id", n}, {"model_path", path}}),
                     "tml-a")));
  for (const auto& one : made) ASSERT_TRUE(until([&] { return one->has_value(); }));
  const std::string sampler = text(**made[2], "sampling_session_id");
  result(sample(sampler, 0));
  EXPECT_EQ(num_read_, 1);
  restart();
  count();
  result(sample(sampler, 0));
  EXPECT_EQ(num_read_, 1) << "it has its result";
  for (const int64_t seq_id : {1, 2}) result(sample(sampler, seq_id));
  EXPECT_EQ(num_read_, 2);
  EXPECT_EQ(num_read_here_, 0);
}

TEST_F(CheckpointsTest, OfADamagedOneSamplersAreTakenAndTheirSamplesFailByNameUntilItIsMended) {
  const std::string id = run(), s = session(), path = keep(id, 1);
  const std::string folder = (dir_ / "checkpoints" / id / "sampler_weights/c1").string();
  const std::string damage = folder + "/damaged";
  const std::string before = text(sampler(s, 0, path), "sampling_session_id");
  restart();
  write_text(damage, "");
  std::vector<std::string> samplers{before};
  for (int64_t n = 1; n < 8; ++n) {  // the engine fails before their turn, or behind it
    const Response made = sampler(s, n, path);
    ASSERT_EQ(made.status, 200) << made.body;
    samplers.push_back(text(made, "sampling_session_id"));
  }
  for (int64_t seq_id = 0; seq_id < 3; ++seq_id)
    for (const std::string& one : samplers) expect_damaged(sample(one, seq_id), path);
  restart();
  for (const std::string& one : samplers) expect_damaged(sample(one, 3), path);
  fs::remove(damage);
  for (const std::string& one : samplers) result(sample(one, 4));
}

TEST_F(CheckpointsTest, ASampleOfADamagedOneThatAKillLeftUndoneFailsByNameAfterTheStart) {
  const std::string id = run(), s = session(), path = keep(id, 1);
  const std::string folder = (dir_ / "checkpoints" / id / "sampler_weights/c1").string();
  write_text(folder + "/damaged", "");
  hold();
  train(id, 2);  // the engine makes nothing meanwhile
  const Response made = sampler(s, 0, path);
  ASSERT_EQ(made.status, 200) << made.body;
  const Response first = sample(text(made, "sampling_session_id"), 0);
  const Response second = sample(text(made, "sampling_session_id"), 1);
  core_->close();
  go_ = true;
  restart();
  expect_damaged(first, path);
  expect_damaged(second, path);
}

TEST_F(CheckpointsTest, WithoutRoomASamplerOfADamagedOneIsToldToComeAgain) {
  const std::string id = run(), s = session(), path = keep(id, 1);
  const std::string folder = (dir_ / "checkpoints" / id / "sampler_weights/c1").string();
  write_text(folder + "/damaged", "");
  const std::string known = text(sampler(s, 0, path), "sampling_session_id");
  expect_damaged(sample(known, 0), path);
  backend_->on_check = [](const engine::Operation& o) {
    const auto* create = std::get_if<engine::Create>(&o);
    require(!create || create->directory.empty(), Code::kBusy, "null: no room");
  };
  const Response refused = sampler(s, 1, path);
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(text(refused, "detail").find("no room for the checkpoint"), std::string::npos);
  EXPECT_EQ(sample(known, 1).status, 429);
  backend_->on_check = {};
  EXPECT_EQ(sampler(s, 1, path).status, 200);
  expect_damaged(sample(known, 1), path);
}

TEST_F(CheckpointsTest, SamplersOfThemStandWhereTheTenantDoesAndNotTheKeyThatAsks) {
  const store::KeyFile keys(dir_.path());
  key_ = keys.create({.tenant = "alice", .scopes = {"train", "sample"}}, {},
                     {.weight = 7, .priority = -2})
             .text;
  ask_for_keys(keys);
  const std::string id = run(key_), s = session(key_);
  ASSERT_EQ(sampler(s, 0, keep(id, 1)).status, 200);
  const core::Sampler& made = core_->domain().samplers().begin()->second;
  const std::string tenant = core::Adapters::of_folder(made.folder);
  done(tenant);  // it comes behind its creation
  EXPECT_EQ(executor_->shares.at(id).weight, 7);
  EXPECT_EQ(executor_->shares.at(tenant).weight, 1);
  EXPECT_EQ(executor_->shares.at(tenant).priority, 0);
}

TEST_F(CheckpointsTest, ANameThatHasAByteOf0IsRefusedWithItAndTheLimit) {
  const std::string id = run(), name("a\0b", 3);
  EXPECT_EQ(error_of(save(id, 1, name)),
            "server: the name 'a\\0b' of a checkpoint must be 1 to 200 letters, digits, '.', '_' "
            "and '-'");
}

TEST_F(CheckpointsTest, AnAdapterThatNobodySamplesLeavesTheEngineUntilItIsSampledAgain) {
  using std::chrono::seconds;
  options_.park_after = seconds(300);
  restart();
  const std::string s = session(key_), path = keep(run(key_), 1);
  const std::string one = text(sampler(s, 0, path), "sampling_session_id");
  result(sample(one, 0), key_);
  int num_deleted = 0, num_read = 0;
  backend_->on_check = [&](const engine::Operation& o) {
    num_deleted += std::holds_alternative<engine::Delete>(o);
    num_read += std::holds_alternative<engine::Create>(o);
  };
  loop_->pass(seconds(299));
  result(sample(one, 1), key_);
  loop_->pass(seconds(299));
  EXPECT_EQ(num_deleted + num_read, 0) << "it was sampled";
  loop_->pass(seconds(151));
  EXPECT_EQ(num_deleted, 1);
  loop_->pass(seconds(1000));
  EXPECT_EQ(num_deleted, 1);
  EXPECT_EQ(num_read, 0);
  result(sample(one, 2), key_);
  result(sample(one, 3), key_);
  EXPECT_EQ(num_read, 1);
}

}  // namespace
}  // namespace twinkle::server
