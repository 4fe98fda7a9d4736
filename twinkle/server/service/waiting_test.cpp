// Requests that wait, with a journal: they take little memory, and nothing of them is lost.
#include <malloc.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "twinkle/base/file.h"
#include "twinkle/server/history/state_file.h"
#include "twinkle/server/service_for_test.h"

namespace twinkle::server {
namespace {

namespace fs = std::filesystem;

// As protobuf has it: a field's tag, a length, bytes.
std::string field_of(char tag, const std::string& bytes) {
  std::string out{tag};
  size_t n = bytes.size();
  for (; n >= 0x80; n >>= 7) out += static_cast<char>(n | 0x80);
  return out + static_cast<char>(n) + bytes;
}

template <class T>
std::string repeated(T value, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i)
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
  return out;
}

// A ForwardBackwardRequest of 16 bytes a token.
std::string long_request(const std::string& run, int64_t seq_id, size_t tokens) {
  const std::string text = field_of('\x0a', repeated<int32_t>(1, tokens));
  const std::string targets = field_of('\x0a', repeated<int64_t>(2, tokens)) + "\x18\x02";
  const std::string weights = field_of('\x0a', repeated<float>(1, tokens)) + "\x18\x03";
  const std::string datum =
      field_of('\x0a', field_of('\x0a', text)) +
      field_of('\x12', field_of('\x0a', "target_tokens") + field_of('\x12', targets)) +
      field_of('\x12', field_of('\x0a', "weights") + field_of('\x12', weights));
  std::string out = field_of('\x0a', run) + '\x10';
  for (; seq_id >= 0x80; seq_id >>= 7) out += static_cast<char>(seq_id | 0x80);
  out += static_cast<char>(seq_id);
  return out + field_of('\x1a', datum) + field_of('\x22', "cross_entropy");
}

int64_t used_memory() {
  return static_cast<int64_t>(::mallinfo2().uordblks + ::mallinfo2().hblkhd);
}

class WaitingTest : public ServiceTest {
 protected:
  static constexpr size_t kTokens = 65536;  // of a request of 1 MiB

  WaitingTest() {
    options_.lines.max_bytes = 3 << 20;
    restart();
  }
  void restart() {
    open();
    go_on();
  }
  Response send_long(const std::string& run, int64_t seq_id) {
    Request r = request("/api/v1/forward_backward", long_request(run, seq_id, kTokens), "tml-a");
    r.headers["content-type"] = "application/x-protobuf";
    return answer(r);
  }
  // A start whose engine does nothing yet.
  void go_on_held() {
    open();
    go_ = false;
    hold();
    go_on();
  }
  void hold() {
    executor_->on_batch = [this] {
      while (!go_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
  }

  std::atomic<bool> go_ = false;
};

TEST_F(WaitingTest, RequestsThatWaitForAMissingNumberTakeFewBytes) {
  const std::string id = run();
  hold();
  const int64_t before = used_memory();
  std::vector<Response> acks;
  for (int64_t seq = 100; seq > 1; --seq) acks.push_back(send_long(id, seq));
  EXPECT_LT(used_memory() - before, 4 << 20) << "for 99 MiB";
  acks.push_back(send_long(id, 1));
  EXPECT_LT(used_memory() - before, 24 << 20) << "some of them in the engine";
  go_ = true;
  for (const Response& ack : acks) EXPECT_EQ(result(ack).content_type, "application/x-protobuf");
  EXPECT_EQ(done(id).size(), 100U);
}

TEST_F(WaitingTest, RequestsThatWaitForTheEngineAreDoneInTheirOrderAfterAKillToo) {
  const std::string id = run();
  hold();
  std::vector<Response> acks;
  for (int64_t seq = 1; seq < 20; ++seq) acks.push_back(send_long(id, seq));
  acks.push_back(step(id, 20));
  acks.push_back(send_long(id, 21));
  EXPECT_GT(services_->operations.num_waiting(), 10);
  services_->close([this] { loop_->run(); });
  go_ = true;
  const int64_t before = used_memory();
  go_on_held();
  EXPECT_LT(used_memory() - before, 24 << 20) << "a start has few of them in memory";
  go_ = true;
  for (const Response& ack : acks) result(ack);
  const std::vector<std::string> all = done(id);
  ASSERT_EQ(all.size(), 21U);
  EXPECT_EQ(all[19], "step");
}

TEST_F(WaitingTest, ResultsBeyondTheirBytesWaitOnTheDiskThroughStatesAndKills) {
  options_.promises.max_result_bytes = 0;
  options_.truncation.journal_bytes = 1;
  restart();
  const std::string id = run();
  std::vector<Response> acks;
  for (int64_t seq = 1; seq <= 5; ++seq) acks.push_back(train(id, seq));
  EXPECT_TRUE(loop_->run_until([&] { return services_->promises.num_open() == 0; }));
  const std::string told = result(acks[0]).body;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(truncate());
    const State state = StateReader(dir_ / "journal").state();
    for (const PromiseState& promise : state.promises) EXPECT_EQ(promise.body, "");
    EXPECT_GE(carried(state).size(), 5U);
    restart();
  }
  for (const Response& ack : acks) EXPECT_EQ(result(ack).content_type, "application/x-protobuf");
  EXPECT_EQ(result(acks[0]).body, told);
  EXPECT_EQ(executor_->num_batches, 0);
  EXPECT_EQ(services_->promises.num_bytes(), 0);
}

TEST_F(WaitingTest, AResultThatTheDiskDoesNotGiveIsLaterAndNotLost) {
  options_.promises.max_result_bytes = 0;
  restart();
  const std::string id = run();
  const Response ack = train(id, 1);
  EXPECT_TRUE(loop_->run_until([&] { return services_->promises.num_open() == 0; }));
  const auto file = dir_ / "journal/00000000000000000001.journal";
  const std::string bytes = read_file(file);
  std::string damaged = bytes;
  damaged.back() ^= 1;
  write_text(file, damaged);
  const Response refused =
      post("/api/v1/retrieve_future", {{"request_id", parse(ack).at("request_id")}});
  EXPECT_EQ(refused.status, 429) << "after which the SDK pauses; after 503 it does not";
  EXPECT_NE(text(refused, "detail").find("cannot be read back"), std::string::npos);
  write_text(file, bytes);
  EXPECT_EQ(result(ack).content_type, "application/x-protobuf");
}

TEST_F(WaitingTest, ARequestWhoseRecordIsDamagedFailsByNameAndItsWindowWithIt) {
  const std::string id = run();
  const Response second = send_long(id, 2), third = step(id, 3);
  const auto file = dir_ / "journal/00000000000000000001.journal";
  std::string bytes = read_file(file);
  bytes[bytes.size() / 2] ^= 1;
  write_text(file, bytes);
  const Response first = train(id, 1);
  EXPECT_NE(text(failure(second), "error").find("has no whole record"), std::string::npos);
  failure(third);
  EXPECT_EQ(result(first).status, 200);
}

class CheckpointsTest : public WaitingTest {
 protected:
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
  std::string save(const std::string& run, int64_t seq_id) {
    const Response ack =
        post("/api/v1/save_weights_for_sampler",
             {{"model_id", run}, {"seq_id", seq_id}, {"path", "c" + std::to_string(seq_id)}}, key_);
    return text(result(ack, key_), "path");
  }
  Response sampler(const std::string& session, int64_t seq_id, const std::string& path) {
    return post(
        "/api/v1/create_sampling_session",
        {{"session_id", session}, {"sampling_session_seq_id", seq_id}, {"model_path", path}}, key_);
  }
  Response sample(const std::string& sampler, int64_t seq_id) {
    return post("/api/v1/asample",
                {{"sampling_session_id", sampler},
                 {"seq_id", seq_id},
                 {"prompt", {{"chunks", {{{"tokens", {1, 2, 3}}, {"type", "encoded_text"}}}}}},
                 {"sampling_params", {{"max_tokens", 3}}}},
                key_);
  }
  // A sample fails by what the engine says of this checkpoint's folder.
  void expect_damaged(const Response& ack, const std::string& path) {
    ASSERT_EQ(ack.status, 200) << ack.body;
    const Response failed = failure(ack, key_);
    EXPECT_EQ(text(failed, "error"), "null: " + path + " is damaged");
    EXPECT_EQ(text(failed, "category"), "server");
  }

  std::string key_ = "tml-a";
  std::atomic<int> num_read_ = 0, num_read_here_ = 0;
};

TEST_F(CheckpointsTest, TheFilesOfALoadAreReadBesideTheThreadThatServes) {
  const std::string id = run();
  result(post("/api/v1/save_weights", {{"model_id", id}, {"seq_id", 1}, {"path", "a"}}));
  count();
  result(post(
      "/api/v1/load_weights",
      {{"session_id", session()}, {"model_seq_id", 0}, {"path", "tinker://" + id + "/weights/a"}}));
  EXPECT_EQ(num_read_, 1);
  EXPECT_EQ(num_read_here_, 0);
}

TEST_F(CheckpointsTest, OneThatIsGoneIsTheOperatorsWhoAloneIsToldWhereItWas) {
  const std::string id = run(), path = "tinker://" + id + "/weights/a";
  result(post("/api/v1/save_weights", {{"model_id", id}, {"seq_id", 1}, {"path", "a"}}));
  const std::string told = "json: cannot open " +
                           (dir_ / "checkpoints" / id / "weights/a/adapter_config.json").string() +
                           ": No such file or directory";
  backend_->on_check = [&](const engine::Operation& o) {
    require(!std::holds_alternative<engine::Load>(o), Code::kNotFound, told);
  };
  std::vector<std::string> trouble;
  services_->operations.on_trouble([&](const std::string& text) { trouble.push_back(text); });
  const std::string s = session();
  const Response failed =
      failure(post("/api/v1/load_weights",
                   {{"session_id", s}, {"model_seq_id", 0}, {"path", path}, {"optimizer", true}}));
  EXPECT_EQ(text(failed, "error"), "server: " + path +
                                       " cannot be read: its folder, or a file in it, is gone; the "
                                       "operator can put it back");
  EXPECT_EQ(text(failed, "category"), "server");
  EXPECT_EQ(trouble, std::vector<std::string>{s + ":train:0:0 failed: " + told});
}

TEST_F(CheckpointsTest, ThoseOfSamplersAreReadThereOnceAndByTheFirstSampleAfterAStart) {
  const std::string id = run(), s = session();
  const std::string path = save(id, 1);
  count();
  std::vector<std::shared_ptr<std::optional<Response>>> made;
  for (int64_t n = 0; n < 3; ++n)
    made.push_back(
        send(request("/api/v1/create_sampling_session",
                     boost::json::serialize(JsonObject{
                         {"session_id", s}, {"sampling_session_seq_id", n}, {"model_path", path}}),
                     "tml-a")));
  for (const auto& one : made) ASSERT_TRUE(loop_->run_until([&] { return one->has_value(); }));
  const std::string sampler = text(**made[2], "sampling_session_id");
  result(sample(sampler, 0));
  EXPECT_EQ(num_read_, 1);
  restart();
  count();
  result(sample(sampler, 0));
  EXPECT_EQ(num_read_, 2) << "though the sample came before";
  result(sample(sampler, 1));
  EXPECT_EQ(num_read_, 2);
  EXPECT_EQ(num_read_here_, 0);
}

TEST_F(CheckpointsTest, OfADamagedOneSamplersAreTakenAndTheirSamplesFailByNameUntilItIsMended) {
  const std::string id = run(), s = session(), path = save(id, 1);
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
  const std::string id = run(), s = session(), path = save(id, 1);
  const std::string folder = (dir_ / "checkpoints" / id / "sampler_weights/c1").string();
  write_text(folder + "/damaged", "");
  hold();
  train(id, 2);  // the engine makes nothing meanwhile
  const Response made = sampler(s, 0, path);
  ASSERT_EQ(made.status, 200) << made.body;
  const Response first = sample(text(made, "sampling_session_id"), 0);
  const Response second = sample(text(made, "sampling_session_id"), 1);
  services_->close([this] { loop_->run(); });
  go_ = true;
  restart();
  expect_damaged(first, path);
  expect_damaged(second, path);
}

TEST_F(CheckpointsTest, WithoutRoomASamplerOfADamagedOneIsToldToComeAgain) {
  const std::string id = run(), s = session(), path = save(id, 1);
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
  ASSERT_EQ(sampler(s, 0, save(id, 1)).status, 200);
  const std::string tenant = services_->samplers.begin()->second.tenant;
  done(tenant);  // behind its creation
  EXPECT_EQ(executor_->shares.at(id).weight, 7);
  EXPECT_EQ(executor_->shares.at(tenant).weight, 1);
  EXPECT_EQ(executor_->shares.at(tenant).priority, 0);
}

TEST_F(CheckpointsTest, ANameThatHasAByteOf0IsRefusedWithItAndTheLimit) {
  const std::string id = run(), name("a\0b", 3);
  const Response refused =
      post("/api/v1/save_weights", {{"model_id", id}, {"seq_id", 1}, {"path", name}});
  EXPECT_EQ(refused.status, 422);
  EXPECT_EQ(text(refused, "detail"),
            "server: the name 'a\\0b' of a checkpoint must be 1 to 200 letters, digits, '.', '_' "
            "and '-'");
}

TEST_F(WaitingTest, TheEndOfASessionCancelsItsSamplesAndNothingElse) {
  const auto sampler = [&](const std::string& session) {
    return text(
        post("/api/v1/create_sampling_session",
             {{"session_id", session}, {"sampling_session_seq_id", 0}, {"base_model", "null"}}),
        "sampling_session_id");
  };
  const auto sample = [&](const std::string& sampler, int64_t seq_id) {
    return post("/api/v1/asample",
                {{"sampling_session_id", sampler},
                 {"seq_id", seq_id},
                 {"prompt", {{"chunks", {{{"tokens", {1, 2, 3}}, {"type", "encoded_text"}}}}}},
                 {"sampling_params", {{"max_tokens", 3}}}});
  };
  const std::string id = run(), ends = id.substr(0, id.find(':')), stays = session();
  const std::string mine = sampler(ends), others = sampler(stays);
  const Response version = post("/api/v1/save_weights_for_sampler",
                                {{"model_id", id}, {"seq_id", 1}, {"sampling_session_seq_id", 1}});
  const std::string of_run = text(result(version), "sampling_session_id");
  const Response before = sample(mine, 0);
  EXPECT_EQ(result(before).status, 200);
  hold();
  executor_->on_step = executor_->on_batch;
  std::vector<Response> cancelled{sample(of_run, 0)}, kept{before, train(id, 2)};
  for (int64_t n = 1; n <= 3; ++n) cancelled.push_back(sample(mine, n));
  kept.push_back(sample(others, 0));
  services_->close([this] { loop_->run(); });
  go_ = true;
  options_.lines.max_given = 1;  // so that most wait for their turn
  open();
  go_ = false;
  hold();
  executor_->on_step = executor_->on_batch;
  go_on();
  EXPECT_GE(services_->operations.num_waiting(), 3);
  const std::string finish = "/api/v1/sessions/" + ends + "/finish";
  EXPECT_EQ(post(finish, JsonObject{}).status, 200);
  go_ = true;
  for (const Response& ack : cancelled)
    EXPECT_EQ(failure(ack).body,
              R"({"error":"server: the session has finished, and this sample was cancelled",)"
              R"("category":"user"})");
  for (const Response& ack : kept) result(ack);
  const Response later = sample(mine, 4);
  EXPECT_EQ(post(finish, JsonObject{}).status, 200) << "the SDK repeats it";
  result(later);
  const auto told = [&] {
    std::vector<std::string> out;
    for (const Response& ack : cancelled) out.push_back(outcome(ack).body);
    return out;
  };
  const std::vector<std::string> before_kill = told();
  restart();
  EXPECT_EQ(told(), before_kill);
  result(later);
}

TEST_F(WaitingTest, LongJsonThatWaitsForTheJournalOrTheDiskIsKeptAsItCame) {
  constexpr int kCount = 20;
  std::string body = R"({"session_id":")" + session() + R"(","x":[0)";
  const std::string one = R"(,{"a":1})" + std::string(26, ' ');  // fewer than there may be
  while (body.size() < 1 << 20) body += one;
  body += "]}";
  const int64_t before = used_memory();
  std::vector<std::shared_ptr<std::optional<Response>>> answers;
  for (const char* route : {"create_session", "create_model"})
    for (int i = 0; i < kCount; ++i)
      answers.push_back(send(request(std::string("/api/v1/") + route, body, "tml-a")));
  EXPECT_LT(used_memory() - before, 150 << 20) << "for 40 MiB, which take 148 MB more as values";
  for (const auto& one : answers) EXPECT_TRUE(loop_->run_until([&] { return one->has_value(); }));
  EXPECT_EQ((*answers.front())->status, 200);
  EXPECT_EQ((*answers.back())->status, 422);
}

// Its end tells the loop, which may be gone later.
TEST_F(WaitingTest, AClosedServiceHasEndedWhatItsDiskWasDoing) {
  std::atomic<bool> begun = false, ended = false;
  services_->disk.run([&] {
    begun = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ended = true;
  });
  while (!begun) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  services_->close([this] { loop_->run(); });
  EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace twinkle::server
