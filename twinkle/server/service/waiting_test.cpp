// Requests that wait, with a journal: they take little memory, and nothing of them is lost.
#include <malloc.h>

#include <atomic>
#include <thread>

#include "twinkle/base/file.h"
#include "twinkle/server/history/state_file.h"
#include "twinkle/server/service_for_test.h"

namespace twinkle::server {
namespace {

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
  // A start waits for what it does again, which may come behind what is held.
  void hold() {
    executor_->on_batch = [this] {
      const auto slowly = std::chrono::milliseconds(1);
      if (does_again_) std::this_thread::sleep_for(20 * slowly);
      while (!go_ && !does_again_ && num_batches_ == 0) std::this_thread::sleep_for(slowly);
      if (!go_ && num_batches_ > 0) --num_batches_;
    };
  }

  // A new checkpoint of a new run.
  std::string saved(const std::string& key) {
    const Response ack =
        post("/api/v1/save_weights", {{"model_id", run(key)}, {"seq_id", 1}, {"path", "a"}}, key);
    return text(result(ack, key), "path");
  }
  Response load(const std::string& session, int64_t number, const std::string& path,
                const std::string& key = "tml-a") {
    return post("/api/v1/load_weights",
                {{"session_id", session}, {"model_seq_id", number}, {"path", path}}, key);
  }
  static bool reads_checkpoint(const engine::Operation& o) {
    const auto* create = std::get_if<engine::Create>(&o);
    return create && !create->directory.empty();
  }
  // What is being read, or waits for that, has been, and the service knows it.
  void settle() {
    bool is_over = false;
    services_->reads.run([] {}, *loop_, [&](const auto&) { is_over = true; });
    EXPECT_TRUE(loop_->run_until([&] { return is_over; }));
  }

  std::atomic<bool> go_ = false;
  std::atomic<int> num_batches_ = 0;  // that go on before that
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

// Each finds the same room: behind an end, and at a start.
TEST_F(WaitingTest, OfManyRunsNoMoreIsReadThanTheEngineIsGiven) {
  constexpr int kRuns = 40;
  options_.lines.max_bytes_total = 4 << 20;
  restart();
  std::vector<std::string> runs;
  for (int i = 0; i < kRuns; ++i) runs.push_back(run());
  hold();
  const auto read = [&] {
    for (int i = 0; i < 20; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      loop_->run();
    }
  };
  const int64_t before = used_memory();
  std::vector<Response> acks;
  for (const std::string& id : runs) acks.push_back(send_long(id, 1));
  ASSERT_EQ(services_->operations.num_waiting(), kRuns - 2) << "half of the room is a tenant's";
  num_batches_ = 1;
  EXPECT_TRUE(loop_->run_until([&] { return services_->operations.num_waiting() < kRuns - 2; }));
  read();
  EXPECT_LT(used_memory() - before, 12 << 20) << "for 40 MiB";
  services_->close([this] { loop_->run(); });
  go_ = true;
  num_batches_ = 1;  // what had ended is done again
  go_on_held();
  read();
  EXPECT_LT(used_memory() - before, 12 << 20) << "at a start";
  go_ = true;
  for (const Response& ack : acks) result(ack);
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
                 {"sampling_params", {{"max_tokens", 500}}}});  // a start is over before
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

TEST_F(WaitingTest, ATenantsLoadsHoldUpNeitherAnothersAcknowledgementsNorItsLoad) {
  const std::string of_a = saved("tml-a"), of_b = saved("tml-b");
  const std::string session_a = session("tml-a"), session_b = session("tml-b");
  std::atomic<int> num_read = 0, permits = 0, at_b = 0;
  backend_->on_check = [&](const engine::Operation& o) {
    if (!reads_checkpoint(o)) return;
    ++num_read;
    if (const auto* c = std::get_if<engine::Create>(&o); c && c->tenant.starts_with(session_b))
      at_b = num_read.load();
    while (permits == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --permits;
  };
  std::vector<Response> loads;
  for (int64_t n = 0; n < 10; ++n) loads.push_back(load(session_a, n, of_a, "tml-a"));
  for (int i = 0; i < 10000 && num_read == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const Response made = post("/api/v1/create_model", model(session_b), "tml-b");
  EXPECT_EQ(made.status, 200) << "while the first is read, and nine wait for that";
  result(made, "tml-b");
  const Response others = load(session_b, 1, of_b, "tml-b");
  permits = 1000;
  result(others, "tml-b");
  EXPECT_EQ(at_b, 2) << "behind the one that was being read";
  for (const Response& ack : loads) result(ack);
  EXPECT_EQ(num_read, 11);
}

TEST_F(WaitingTest, ACheckpointForWhichThereWasNoRoomIsReadAgainWhenSomeWasGivenBack) {
  const std::string path = saved("tml-a"), id = run(), s = session();
  hold();
  const Response held = train(id, 1);
  std::atomic<int> num_read = 0;
  std::atomic<bool> has_room = false;
  backend_->on_check = [&](const engine::Operation& o) {
    if (!reads_checkpoint(o)) return;
    const bool had_room = has_room;
    ++num_read;
    require(had_room, Code::kBusy, "no room");
  };
  const Response first = load(s, 0, path), second = load(s, 1, path);
  settle();
  const auto pass = [&](int times) {
    for (int i = 0; i < times; ++i) {
      loop_->pass(options_.lines.again);
      settle();
    }
  };
  pass(10);
  EXPECT_EQ(num_read, 1) << "neither it nor the next of its tenant";
  pass(11);
  EXPECT_EQ(num_read, 2) << "others may have taken what was given back";
  has_room = true;
  go_ = true;
  result(held);
  EXPECT_EQ(num_read, 2);
  pass(1);
  result(first);
  result(second);
  EXPECT_EQ(num_read, 4);
}

// Its end tells the loop, which may be gone later.
TEST_F(WaitingTest, AClosedServiceHasEndedWhatItsDiskWasDoing) {
  std::atomic<int> begun = 0, ended = 0;
  for (Worker* worker : {&services_->disk, &services_->reads})
    worker->run([&] {
      ++begun;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      ++ended;
    });
  while (begun < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  services_->close([this] { loop_->run(); });
  EXPECT_EQ(ended, 2);
}

}  // namespace
}  // namespace twinkle::server
