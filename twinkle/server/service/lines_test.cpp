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
    open_held();
  }
  // With an engine that does no training until go_.
  void open_held(const engine::DispatcherOptions& options = {}) {
    open(options);
    executor_->on_batch = [this] {
      is_at_work_ = true;
      while (!go_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    go_on();
  }
  // A forward_backward with so many bytes that nobody reads.
  Response send(const std::string& run, int64_t seq_id, const std::string& key,
                size_t unread = 1024) {
    std::string body = forward_backward_bytes(run, seq_id, "cross_entropy") + '\x7a';
    size_t n = unread;
    for (; n >= 0x80; n >>= 7) body += static_cast<char>(n | 0x80);
    body += static_cast<char>(n) + std::string(unread, 'x');
    Request r = request("/api/v1/forward_backward", body, key);
    r.headers["content-type"] = "application/x-protobuf";
    return answer(r);
  }
  // Of the base model.
  std::string sampler(const std::string& key) {
    return text(
        post("/api/v1/create_sampling_session",
             {{"session_id", session(key)}, {"sampling_session_seq_id", 0}, {"base_model", "null"}},
             key),
        "sampling_session_id");
  }
  Response sample(const std::string& sampler, int64_t max_tokens, const std::string& key = "tml-a",
                  size_t unread = 0) {
    return post("/api/v1/asample",
                {{"sampling_session_id", sampler},
                 {"seq_id", num_samples_++},
                 {"prompt", {{"chunks", {{{"tokens", {1, 2, 3}}, {"type", "encoded_text"}}}}}},
                 {"sampling_params", {{"max_tokens", max_tokens}}},
                 {"unread", std::string(unread, 'x')}},
                key);
  }
  static void expect_busy(const Response& refused, const std::string& why) {
    EXPECT_EQ(refused.status, 429);
    EXPECT_EQ(text(refused, "detail"), "server: the engine" + why + "; come again");
  }
  int64_t num_waiting() const { return services_->operations.num_waiting(); }

  std::atomic<bool> go_ = false, is_at_work_ = false;
  int64_t num_samples_ = 0;
};

TEST_F(LinesTest, ATenantWithManyRunsLeavesRoomForOthers) {
  std::vector<std::pair<Response, std::string>> acks;
  const std::string other = run("tml-b"), of_base = sampler("tml-b");
  std::vector<std::string> runs;
  for (int i = 0; i < 6; ++i) runs.push_back(run("tml-a"));
  for (const std::string& id : runs)
    for (int64_t seq_id = 1; seq_id <= 3; ++seq_id)
      acks.emplace_back(send(id, seq_id, "tml-a"), "tml-a");
  EXPECT_GE(num_waiting(), 14) << "half of the room is a tenant's at most";
  const int64_t before = num_waiting();
  acks.emplace_back(send(other, 1, "tml-b"), "tml-b");
  EXPECT_EQ(num_waiting(), before);
  const Response sampled = sample(of_base, 3, "tml-b");
  EXPECT_EQ(sampled.status, 200) << sampled.body;
  EXPECT_EQ(num_waiting(), before);
  acks.emplace_back(sampled, "tml-b");
  go_ = true;
  for (const auto& [ack, key] : acks) result(ack, key);
  EXPECT_EQ(num_waiting(), 0);
}

// Whatever it has sent: requests that have few bytes take places.
TEST_F(LinesTest, ATenantWithManyRunsLeavesPlacesForOthers) {
  options_.lines = {.max_given = 4};
  open_held({.max_queued = 4, .max_queued_total = 8});
  const std::vector<std::string> runs{run("tml-a"), run("tml-a"), run("tml-a")};
  const std::string other = run("tml-b");
  const std::string of_a = sampler("tml-a"), of_b = sampler("tml-b");
  std::vector<std::pair<Response, std::string>> acks;
  for (int64_t seq_id = 1; seq_id <= 8; ++seq_id)
    for (const std::string& id : runs) acks.emplace_back(send(id, seq_id, "tml-a", 0), "tml-a");
  EXPECT_EQ(num_waiting(), 20) << "half of seven eighths of the places is a tenant's at most";
  acks.emplace_back(sample(of_b, 3, "tml-b"), "tml-b");
  EXPECT_EQ(acks.back().first.status, 200) << acks.back().first.body;
  acks.emplace_back(send(other, 1, "tml-b", 0), "tml-b");
  EXPECT_EQ(num_waiting(), 20);
  expect_busy(sample(of_a, 3),
              " has 4 operations of this tenant, and a tenant has at most as many as are left of "
              "the 7 that tenants share of max_queued_total, 1");
  go_ = true;
  for (const auto& [ack, key] : acks) result(ack, key);
}

// Of requests that are short: it is their results that fill the engine.
TEST_F(LinesTest, ATenantWhoseResultsAreLongLeavesMemoryOfTheEngineForOthers) {
  open_held({.max_queued_bytes_total = 8 << 20});
  std::vector<std::string> runs;
  for (int i = 0; i < 6; ++i) runs.push_back(run("tml-a"));
  const std::string other = run("tml-b"), of_a = sampler("tml-a");
  executor_->result_bytes = 900 << 10;
  std::vector<std::pair<Response, std::string>> acks;
  for (const std::string& id : runs) acks.emplace_back(send(id, 1, "tml-a", 0), "tml-a");
  EXPECT_EQ(num_waiting(), 2) << "half of seven eighths of 8 MiB is a tenant's at most";
  const std::string why = text(sample(of_a, 3), "detail");
  EXPECT_NE(why.find(", by its part of the engine's memory with its result, and a tenant has"),
            std::string::npos)
      << why;
  acks.emplace_back(send(other, 1, "tml-b", 0), "tml-b");
  EXPECT_EQ(num_waiting(), 2);
  go_ = true;
  for (const auto& [ack, key] : acks) result(ack, key);
}

TEST_F(LinesTest, ATenantThatMakesManyRunsLeavesPlacesForOthersRuns) {
  options_.lines = {.max_given = 4};
  open_held({.max_queued = 4, .max_queued_total = 8});
  std::vector<std::pair<Response, std::string>> acks;
  acks.emplace_back(send(run("tml-a"), 1, "tml-a", 0), "tml-a");
  for (int i = 0; i < 10000 && !is_at_work_; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_TRUE(is_at_work_);
  const auto make = [&](const std::string& key) {
    acks.emplace_back(post("/api/v1/create_model", model(session(key)), key), key);
  };
  for (int i = 0; i < 10; ++i) make("tml-a");
  EXPECT_EQ(num_waiting(), 7) << "half of seven eighths of the places is a tenant's at most";
  make("tml-b");
  EXPECT_EQ(num_waiting(), 7);
  go_ = true;
  for (const auto& [ack, key] : acks) result(ack, key);
}

TEST_F(LinesTest, WhatWaitsForItsOwnTenantsRoomHoldsUpNoOtherTenant) {
  options_.lines = {.max_bytes = 2 << 20, .max_bytes_total = 2 << 20};
  open_held();
  std::vector<std::string> of_a, of_b;
  for (int i = 0; i < 4; ++i) of_a.push_back(run("tml-a")), of_b.push_back(run("tml-b"));
  const std::string sampler_a = sampler("tml-a"), sampler_b = sampler("tml-b");
  std::vector<std::pair<Response, std::string>> acks;
  for (size_t i = 0; i < 3; ++i) acks.emplace_back(send(of_a[i], 1, "tml-a", 256 << 10), "tml-a");
  acks.emplace_back(send(of_a[3], 1, "tml-a", 800 << 10), "tml-a");
  ASSERT_EQ(num_waiting(), 1);
  for (int64_t seq_id = 1; 3 * seq_id < Hungry::kMostPasses + 3; ++seq_id)
    for (size_t i = 0; i < 3; ++i) acks.emplace_back(send(of_b[i], seq_id, "tml-b", 0), "tml-b");
  acks.emplace_back(send(of_b[3], 1, "tml-b", 0), "tml-b");
  EXPECT_EQ(num_waiting(), 1);
  acks.emplace_back(sample(sampler_b, 3, "tml-b"), "tml-b");
  EXPECT_EQ(acks.back().first.status, 200) << acks.back().first.body;
  const std::string why = text(sample(sampler_a, 3, "tml-a", 800 << 10), "detail");
  EXPECT_TRUE(why.starts_with("server: the engine has 78")) << why;
  EXPECT_NE(why.find(" bytes of this tenant's requests, this one has 81"), std::string::npos);
  EXPECT_NE(why.find(", and a tenant has at most as many as are left of max_given_bytes_total, "),
            std::string::npos);
  go_ = true;
  for (const auto& [ack, key] : acks) result(ack, key);
}

TEST_F(LinesTest, ASampleBehindAFullLineIsToldSo) {
  options_.lines.max_given = 1;
  open_held();
  executor_->on_step = executor_->on_batch;
  const std::string id = sampler("tml-a");
  const Response first = sample(id, 3);
  expect_busy(sample(id, 3), "'s queue of '" + services_->samplers.at(id).tenant + "' is full");
  go_ = true;
  result(first);
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

TEST_F(LinesTest, AnEngineWithoutRoomIsAskedOnceInSoManySecondsHoweverManyOfTheLineEnd) {
  const std::string id = run();
  int asked = 0;
  bool has_room = true;
  backend_->on_check = [&](const engine::Operation& o) {
    if (!std::holds_alternative<engine::ForwardBackward>(o)) return;
    ++asked;
    require(has_room, Code::kBusy, "no room");
  };
  std::vector<Response> acks;
  for (int64_t seq_id = 1; seq_id <= 4; ++seq_id) acks.push_back(train(id, seq_id));
  has_room = false;
  const Response last = train(id, 5);
  EXPECT_EQ(asked, 5);
  go_ = true;
  for (const Response& ack : acks) result(ack);
  for (int i = 0; i < 3; ++i) {
    const int before = asked;
    loop_->pass(options_.lines.again);
    EXPECT_EQ(asked, before + 1);
  }
  has_room = true;
  loop_->pass(options_.lines.again);
  result(last);
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

// Else a run that has some would go on for as long as it sends.
TEST_F(LinesTest, ARunOfATenantThatWaitsForRoomIsNextBeforeTheOneWhoseRequestHasEnded) {
  options_.lines = {.max_given = 1, .max_bytes_total = 3 << 10};  // one request of a tenant
  open_held();
  const std::string first = run(), second = run();
  std::vector<std::string> given;
  backend_->on_check = [&](const engine::Operation& o) {
    if (std::holds_alternative<engine::ForwardBackward>(o)) given.push_back(engine::tenant_of(o));
  };
  std::vector<Response> acks;
  for (int64_t seq_id = 1; seq_id <= 3; ++seq_id) acks.push_back(send(first, seq_id, "tml-a"));
  acks.push_back(send(second, 1, "tml-a"));
  go_ = true;
  for (const Response& ack : acks) result(ack);
  EXPECT_EQ(given, (std::vector{first, second, first, first}));
}

TEST_F(LinesTest, WhoHasLessThanTheTenantOfOneThatIsPassedNoMoreGoesOn) {
  options_.lines = {.max_bytes = 1 << 20, .max_bytes_total = 1 << 20};
  open_held();
  const std::vector<std::string> of_a{run("tml-a"), run("tml-a"), run("tml-a"), run("tml-a")};
  const std::string of_b = run("tml-b"), more_of_b = run("tml-b");
  const std::string sampler_a = sampler("tml-a"), sampler_c = sampler("tml-c");
  std::vector<std::pair<Response, std::string>> acks;
  acks.emplace_back(send(of_b, 1, "tml-b", 100 << 10), "tml-b");
  acks.emplace_back(send(of_a[3], 1, "tml-a", 200 << 10), "tml-a");
  acks.emplace_back(send(more_of_b, 1, "tml-b", 700 << 10), "tml-b");
  for (int64_t seq_id = 1; seq_id <= Hungry::kMostPasses / 3; ++seq_id)
    for (size_t i = 0; i < 3; ++i) acks.emplace_back(send(of_a[i], seq_id, "tml-a", 0), "tml-a");
  acks.emplace_back(send(of_a[3], 2, "tml-a", 0), "tml-a");
  EXPECT_EQ(num_waiting(), 1) << "all 256 of them pass it";
  expect_busy(sample(sampler_a, 3), "'s room is kept for a request that has waited longer");
  acks.emplace_back(sample(sampler_c, 3, "tml-c"), "tml-c");
  EXPECT_EQ(acks.back().first.status, 200) << acks.back().first.body;
  go_ = true;
  for (const auto& [ack, key] : acks) result(ack, key);
}

TEST_F(LinesTest, WhatIsTooLargeForWhatIsLeftIsPassedSoOftenAndThenHasItsTurn) {
  options_.lines.max_bytes_total = 8 << 10;
  options_.lines.max_given = 1;
  open({.token_budget = 3});  // a batch is one request
  go_on();
  const std::string large = run("tml-b"), third = run("tml-c"), of_base = sampler("tml-c");
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
  std::vector<Response> small;
  const auto send_small = [&] {  // so that one of each run is given, and one waits
    for (const std::string& id : runs)
      while (sent[id] < given[id] + 1) small.push_back(send(id, ++sent[id], "tml-a"));
  };
  send_small();
  send_small();
  ASSERT_EQ(num_small, 3);
  const Response waits = send(large, 1, "tml-b", 7 << 10);
  const int64_t most = Hungry::kMostPasses + 3;  // those that wait by now came before it
  for (num_small = 0; num_small < most; send_small()) {
    const int64_t before = num_small;
    permits = 1;
    ASSERT_TRUE(loop_->run_until([&] { return num_small > before; })) << num_small;
    ASSERT_EQ(given[large], 0) << num_small;
  }
  // One that need not be read would find room while the large one is.
  bool has_ended = false;
  const auto in_memory = std::make_shared<Pending>(
      "in memory",
      Ready{engine::ForwardBackward{.tenant = third, .sequences = {{.input_ids = {1}}}},
            [](const engine::Result&) { return Response{.body = "done"}; }},
      Source{.bytes = 1 << 10}, [&](const Ended&) { has_ended = true; });
  in_memory->owner = "tml-c";
  services_->operations.start(in_memory);
  expect_busy(sample(of_base, 3, "tml-c"), "'s room is kept for a request that has waited longer");
  permits = 3;
  EXPECT_TRUE(loop_->run_until([&] { return given[large] > 0; }));
  EXPECT_EQ(num_small, most);
  permits = 1000;
  result(waits, "tml-b");
  EXPECT_TRUE(loop_->run_until([&] { return has_ended; }));
  for (const Response& ack : small) result(ack);  // what they come to is of this function
}

TEST_F(LinesTest, WhatCannotBeReadForWantOfFilesIsReadLaterAndDone) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the undefined-behaviour sanitizer opens a pipe for its checks";
#endif
  options_.lines.max_given = 1;
  open_held();
  std::vector<std::string> troubles;
  services_->operations.on_trouble([&](const std::string& text) { troubles.push_back(text); });
  const std::string id = run(), other = run("tml-b");
  const Response first = train(id, 1), second = send(id, 2, "tml-a", 6 << 10);
  const Response stepped = step(id, 3);
  Response others;
  {
    const LimitForTest none(RLIMIT_NOFILE, 0);
    go_ = true;
    result(first);
    EXPECT_TRUE(loop_->run_until([&] { return !troubles.empty(); }));
    const int64_t before = num_waiting();
    others = send(other, 1, "tml-b", 3 << 10);
    EXPECT_EQ(num_waiting(), before) << "what is not read has no room";
    loop_->pass(std::chrono::seconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    loop_->run();
  }
  loop_->pass(std::chrono::seconds(1));
  result(second);
  result(stepped);
  result(others, "tml-b");
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
