// How much of what tenants have sent the engine is given at a time.
#include "twinkle/server/service/lines.h"

#include <sys/resource.h>

#include <atomic>

#include "twinkle/io/limit_for_test.h"
#include "twinkle/server/service_for_test.h"

namespace twinkle::server {
namespace {

class LinesTest : public ServiceTest {
 protected:
  LinesTest() {
    options_.lines.max_bytes = 3 << 10;
    options_.lines.max_bytes_total = 8 << 10;
    open();
    executor_->on_batch = [this] {
      while (!go_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    go_on();
  }
  // A forward_backward with a kibibyte that nobody reads.
  Response send(const std::string& run, int64_t seq_id, const std::string& key) {
    const std::string unread = std::string("\x7a\x80\x08") + std::string(1024, 'x');
    Request r = request("/api/v1/forward_backward",
                        forward_backward_bytes(run, seq_id, "cross_entropy") + unread, key);
    r.headers["content-type"] = "application/x-protobuf";
    return answer(r);
  }
  Response sample(const std::string& sampler, int64_t max_tokens,
                  const std::string& key = "tml-a") {
    return post("/api/v1/asample",
                {{"sampling_session_id", sampler},
                 {"seq_id", 0},
                 {"prompt", {{"chunks", {{{"tokens", {1, 2, 3}}, {"type", "encoded_text"}}}}}},
                 {"sampling_params", {{"max_tokens", max_tokens}}}},
                key);
  }
  int64_t num_waiting() const { return services_->operations.num_waiting(); }

  std::atomic<bool> go_ = false;
};

TEST_F(LinesTest, ATenantWithManyRunsLeavesRoomForOthers) {
  std::vector<std::pair<Response, std::string>> acks;
  const std::string other = run("tml-b");
  const std::string sampler = text(post("/api/v1/create_sampling_session",
                                        {{"session_id", other.substr(0, other.find(':'))},
                                         {"sampling_session_seq_id", 0},
                                         {"base_model", "null"}},
                                        "tml-b"),
                                   "sampling_session_id");
  std::vector<std::string> runs;
  for (int i = 0; i < 6; ++i) runs.push_back(run("tml-a"));
  for (const std::string& id : runs)
    for (int64_t seq_id = 1; seq_id <= 3; ++seq_id)
      acks.emplace_back(send(id, seq_id, "tml-a"), "tml-a");
  EXPECT_GE(num_waiting(), 14) << "half of the room is a tenant's at most";
  const int64_t before = num_waiting();
  acks.emplace_back(send(other, 1, "tml-b"), "tml-b");
  EXPECT_EQ(num_waiting(), before);
  const Response sampled = sample(sampler, 3, "tml-b");
  EXPECT_EQ(sampled.status, 200) << sampled.body;
  EXPECT_EQ(num_waiting(), before);
  acks.emplace_back(sampled, "tml-b");
  go_ = true;
  for (const auto& [ack, key] : acks) result(ack, key);
  EXPECT_EQ(num_waiting(), 0);
}

TEST_F(LinesTest, AnEngineWithoutRoomIsAskedAgainAfterSoManySecondsAndNotBefore) {
  options_.lines.again = std::chrono::milliseconds(700);
  open();
  go_on();
  go_ = true;
  const std::string id = run();
  int asked = 0;
  backend_->on_check = [&](const engine::Operation& o) {
    if (!std::holds_alternative<engine::ForwardBackward>(o)) return;
    require(++asked > 2, Code::kBusy, "no room");
  };
  const Response ack = train(id, 1);
  EXPECT_EQ(asked, 1);
  for (const int expected : {2, 3}) {
    loop_->pass(std::chrono::milliseconds(699));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // in which it would be read back
    loop_->run();
    EXPECT_EQ(asked, expected - 1);
    loop_->pass(std::chrono::milliseconds(1));
    EXPECT_TRUE(loop_->run_until([&] { return asked == expected; }));
  }
  result(ack);
  EXPECT_EQ(asked, 3);
}

TEST_F(LinesTest, WhatAnEngineWithoutRoomWasAskedForIsMadeOnceAndNotEachTimeItIsAsked) {
  go_ = true;
  const std::string id = run();
  bool has_room = false;
  int asked = 0, made = 0;
  backend_->on_check = [&](const engine::Operation& o) {
    if (!std::holds_alternative<engine::ForwardBackward>(o)) return;
    ++asked;
    require(has_room, Code::kBusy, "no room");
  };
  const engine::ForwardBackward op{.tenant = id, .sequences = {{.input_ids = {1, 2}}}};
  bool has_ended = false;
  const auto ready = [op] {
    return Ready{op, [](const engine::Result&) { return Response{.body = "done"}; }};
  };
  services_->operations.start(
      std::make_shared<Pending>("made", ready(),
                                Source{.sequence = 1,
                                       .bytes = 100,
                                       .make =
                                           [&](const Command&) {
                                             ++made;
                                             return ready();
                                           }},
                                [&](const Ended& ended) { has_ended = ended.body == "done"; }));
  for (int i = 0; i < 5; ++i) {
    loop_->pass(options_.lines.again);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    loop_->run();
  }
  EXPECT_EQ(asked, 6);
  EXPECT_EQ(made, 0) << "it is still in memory";
  has_room = true;
  loop_->pass(options_.lines.again);
  EXPECT_TRUE(loop_->run_until([&] { return has_ended; }));
}

// It is in memory, as what the engine was given: others have the room that is left.
TEST_F(LinesTest, WhatTheEngineHasRefusedTakesRoomOfAll) {
  options_.lines.max_bytes_total = 3 << 10;
  open();
  go_on();
  go_ = true;
  std::vector<std::string> runs;
  for (int i = 0; i < 4; ++i) runs.push_back(run());
  std::map<std::string, int> asked;
  bool has_room = false;
  backend_->on_check = [&](const engine::Operation& o) {
    if (!std::holds_alternative<engine::ForwardBackward>(o)) return;
    ++asked[engine::tenant_of(o)];
    require(has_room, Code::kBusy, "no room");
  };
  std::vector<Response> acks;
  for (const std::string& id : runs) acks.push_back(send(id, 1, "tml-a"));
  for (int i = 0; i < 3; ++i) loop_->pass(options_.lines.again);
  EXPECT_EQ(asked, (std::map<std::string, int>{{runs[0], 4}})) << "half of it is an owner's";
  has_room = true;
  loop_->pass(options_.lines.again);
  for (const Response& ack : acks) result(ack);
}

TEST_F(LinesTest, WhatIsTooLargeForWhatIsLeftIsPassedSoOftenAndThenHasItsTurn) {
  options_.lines.max_bytes_total = 8 << 10;
  options_.lines.max_given = 1;
  open({.token_budget = 3});  // a batch is one request
  go_on();
  const std::string large = run("tml-b");
  const std::vector<std::string> runs{run("tml-a"), run("tml-a"), run("tml-a")};
  std::atomic<int> permits = 0;
  executor_->on_batch = [&] {
    while (permits == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --permits;
  };
  std::map<std::string, int64_t> given, sent;
  int64_t num_small = 0;
  backend_->on_check = [&](const engine::Operation& o) {
    ++given[engine::tenant_of(o)];
    num_small += engine::tenant_of(o) != large;
  };
  const auto send_small = [&] {  // so that one of each run is given, and one waits
    for (const std::string& id : runs)
      while (sent[id] < given[id] + 1) send(id, ++sent[id], "tml-a");
  };
  send_small();
  send_small();
  ASSERT_EQ(num_small, 3);
  const std::string unread = std::string("\x7a\x80\x38") + std::string(7 << 10, 'x');
  Request r = request("/api/v1/forward_backward",
                      forward_backward_bytes(large, 1, "cross_entropy") + unread, "tml-b");
  r.headers["content-type"] = "application/x-protobuf";
  const Response waits = answer(r);
  const int64_t most = Hungry::kMostPasses + 3;  // those that wait by now came before it
  for (num_small = 0; num_small < most; send_small()) {
    const int64_t before = num_small;
    permits = 1;
    ASSERT_TRUE(loop_->run_until([&] { return num_small > before; })) << num_small;
    ASSERT_EQ(given[large], 0) << num_small;
  }
  permits = 3;
  EXPECT_TRUE(loop_->run_until([&] { return given[large] > 0; }));
  EXPECT_EQ(num_small, most);
  permits = 1000;
  result(waits, "tml-b");
}

TEST_F(LinesTest, WhatCannotBeReadForWantOfFilesIsReadLaterAndDone) {
  options_.lines.max_given = 1;
  open();
  executor_->on_batch = [this] {
    while (!go_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  go_on();
  std::vector<std::string> troubles;
  services_->operations.on_trouble([&](const std::string& text) { troubles.push_back(text); });
  const std::string id = run();
  const Response first = train(id, 1), second = train(id, 2), stepped = step(id, 3);
  {
    const LimitForTest none(RLIMIT_NOFILE, 0);
    go_ = true;
    result(first);
    EXPECT_TRUE(loop_->run_until([&] { return !troubles.empty(); }));
    loop_->pass(std::chrono::seconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    loop_->run();
  }
  loop_->pass(std::chrono::seconds(1));
  result(second);
  result(stepped);
  ASSERT_EQ(troubles.size(), 1u) << "told once";
  EXPECT_TRUE(troubles[0].starts_with(id + ":2 waits, since its record cannot be read now: store: "
                                           "cannot open "))
      << troubles[0];
}

// The engine has no version before the Publish that makes it, and a start does that again behind
// all that the run was trained by.
TEST_F(LinesTest, ASampleOfAVersionWaitsUntilAStartHasPublishedItAgain) {
  go_ = true;
  options_.lines.max_given = 1;  // so that a start's journal ends before the line of the run does
  const std::string id = run();
  for (int64_t seq_id = 1; seq_id < 9; seq_id += 2) {
    result(train(id, seq_id));
    result(step(id, seq_id + 1));
  }
  const std::string sampler =
      text(result(post("/api/v1/save_weights_for_sampler", {{"model_id", id}, {"seq_id", 9}})),
           "sampling_session_id");
  int times = 0;  // it is asked when the Sample comes, and when it is to be given
  backend_->on_check = [&](const engine::Operation& o) {
    require(!std::holds_alternative<engine::Sample>(o) || ++times == 1, Code::kBusy, "no room");
  };
  const Response unended = sample(sampler, 3);
  open();
  executor_->on_batch = [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
  std::string order;
  backend_->on_check = [&](const engine::Operation& o) {
    if (std::holds_alternative<engine::Publish>(o)) order += "publish ";
    if (std::holds_alternative<engine::Sample>(o)) order += "sample ";
  };
  go_on();
  result(unended);
  EXPECT_EQ(order, "publish sample ");
}

// The engine lets what trains a run pass its samples.
TEST_F(LinesTest, ASampleThatEndedBehindTrainingIsNotDoneAgainByAStart) {
  go_ = true;
  const std::string id = run();
  const std::string sampler =
      text(result(post("/api/v1/save_weights_for_sampler", {{"model_id", id}, {"seq_id", 1}})),
           "sampling_session_id");
  executor_->on_step = [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
  const Response sampled = sample(sampler, 40);
  result(train(id, 2));
  const std::string told = result(sampled).body;
  int samples = 0;
  open();
  backend_->on_check = [&](const engine::Operation& o) {
    samples += std::holds_alternative<engine::Sample>(o);
  };
  go_on();
  EXPECT_EQ(result(sampled).body, told);
  EXPECT_EQ(samples, 0) << "its end was recorded";
}

}  // namespace
}  // namespace twinkle::server
