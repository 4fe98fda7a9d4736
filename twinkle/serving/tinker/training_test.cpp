// Runs of two clients over Tinker's wire, on a null model.
#include "twinkle/serving/api/service_for_test.h"

namespace twinkle::server {
namespace {

using RunsTest = ServiceTest;

TEST_F(RunsTest, ARunTrainsAndStepsInTheOrderOfItsNumbers) {
  const std::string id = run();
  const Response third = train(id, 3), second = step(id, 2), first = train(id, 1);
  EXPECT_EQ(text(first, "request_id"), id + ":1");
  EXPECT_EQ(result(first).content_type, "application/x-protobuf");
  EXPECT_TRUE(parse(result(second)).contains("metrics"));
  result(third);
  EXPECT_EQ(done(id), (std::vector<std::string>{"2/0", "step", "4/0"}));
}

TEST_F(RunsTest, ARequestThatComesTwiceIsDoneOnce) {
  const std::string id = run();
  EXPECT_EQ(train(id, 1).body, train(id, 1).body);
  EXPECT_EQ(step(id, 2).body, step(id, 2).body);
  result(step(id, 2));
  EXPECT_EQ(done(id), (std::vector<std::string>{"2/0", "step"}));
  const std::string s = session();
  EXPECT_EQ(post("/api/v1/create_model", model(s)).body,
            post("/api/v1/create_model", model(s)).body);
}

TEST_F(RunsTest, ANumberThatCameIsItsFirstRequestWhateverComesUnderItLater) {
  const std::string id = run();
  const Response first = train(id, 1);
  const auto save = [&](int64_t seq_id, const char* name) {
    return post("/api/v1/save_weights", {{"model_id", id}, {"seq_id", seq_id}, {"path", name}});
  };
  EXPECT_EQ(step(id, 1).body, first.body);
  EXPECT_EQ(save(1, "a").body, first.body);
  EXPECT_EQ(train(id, 1, "dro").body, first.body);
  EXPECT_EQ(result(first).content_type, "application/x-protobuf");
  EXPECT_TRUE(parse(result(save(2, "a"))).contains("path")) << "the name was not used";
  EXPECT_EQ(done(id), (std::vector<std::string>{"2/0"}));
}

TEST_F(RunsTest, AWindowWithAFailureIsDroppedAndTheNextIsWhole) {
  const std::string id = run();
  const Response good = train(id, 1), bad = train(id, 2, "fail"), stepped = step(id, 3);
  EXPECT_EQ(text(failure(bad), "category"), "user");
  EXPECT_EQ(text(failure(stepped), "error").substr(0, 43),
            "optim_step: a request of its window failed,");
  const Response next = train(id, 4), ends = step(id, 5);
  EXPECT_TRUE(parse(result(ends)).contains("metrics"));
  EXPECT_EQ(done(id).back(), "step");
  result(good), result(next);
}

TEST_F(RunsTest, AStepThatIsWrongUsesItsNumberUpAndLeavesItsWindowToTheNext) {
  const std::string id = run();
  const Response passed = train(id, 1);
  int64_t seq_id = 1;
  for (const char* name : {"learning_rate", "grad_clip_norm"}) {  // the SDK's NaN is null
    JsonObject adam{{"learning_rate", 0.1}};
    adam[name] = nullptr;
    const Response refused =
        post("/api/v1/optim_step", {{"model_id", id}, {"seq_id", ++seq_id}, {"adam_params", adam}});
    EXPECT_EQ(text(failure(refused), "error"),
              std::string("json: field '") + name + "' is null, expected a number");
  }
  EXPECT_TRUE(parse(result(step(id, 4))).contains("metrics"));
  EXPECT_EQ(done(id).size(), 2U);
  result(passed);
}

TEST_F(RunsTest, AWrongRequestUsesItsNumberUpAndBreaksItsWindow) {
  const std::string id = run();
  const Response wrong = train(id, 1, "");
  const std::string why = "server: loss_fn is missing; give a loss, such as cross_entropy";
  EXPECT_EQ(text(failure(wrong), "error"), why);
  EXPECT_EQ(text(failure(wrong), "category"), "user");
  EXPECT_EQ(train(id, 1, "").body, wrong.body);
  const Request bare =
      request("/api/v1/optim_step", R"({"model_id":")" + id + R"(","seq_id":2})", "tml-a");
  const Response other = answer(bare);
  EXPECT_EQ(answer(bare).body, other.body);
  failure(other);
  const std::string error = text(failure(step(id, 3)), "error");
  EXPECT_EQ(error.substr(0, 43), "optim_step: a request of its window failed,");
  EXPECT_NE(error.find("seq_id 1: " + why), std::string::npos) << error;
}

TEST_F(RunsTest, ANumberThatWasWrongStaysSoWhateverComesUnderItLater) {
  const std::string id = run();
  const Response wrong = train(id, 2, "");
  const std::string why = text(failure(wrong), "error");
  EXPECT_EQ(train(id, 2).body, wrong.body);
  result(train(id, 1));
  EXPECT_EQ(text(failure(train(id, 2)), "error"), why);
  EXPECT_EQ(done(id).size(), 1U);
}

TEST_F(RunsTest, ARequestThatCannotBeReadUsesItsNumberUpAndBreaksItsWindow) {
  const std::string id = run();
  Request broken = request("/api/v1/forward_backward",
                           forward_backward_bytes(id, 1, "cross_entropy") + "\x1a\x7f", "tml-a");
  broken.headers["content-type"] = "application/x-protobuf";
  const Response first = answer(broken);
  EXPECT_EQ(text(failure(first), "category"), "user");
  EXPECT_EQ(text(failure(step(id, 2)), "error").substr(0, 43),
            "optim_step: a request of its window failed,");
  EXPECT_EQ(train(id, 1).body, first.body);
  result(train(id, 3));
  EXPECT_TRUE(parse(result(step(id, 4))).contains("metrics"));
  broken.body = forward_backward_bytes("another", 1, "cross_entropy") + "\x1a\x7f";
  EXPECT_EQ(answer(broken).status, 404);
}

TEST_F(RunsTest, NumbersThatAreNotFiniteAreRefusedByTheirField) {
  const std::string id = run();
  std::string bytes = forward_backward_bytes(id, 1, "cross_entropy");
  const size_t at = bytes.rfind("\x80\x3f", std::string::npos);  // the last weight's half
  bytes[at + 1] = '\x7f';                                        // 0x7f800000
  Request r = request("/api/v1/forward_backward", bytes, "tml-a");
  r.headers["content-type"] = "application/x-protobuf";
  EXPECT_EQ(text(failure(answer(r)), "error"),
            "server: data[0].weights holds inf at 2, its numbers must be finite");
}

TEST_F(RunsTest, APollOfWorkThatRunsWaitsAndIsAnswered408) {
  std::atomic<bool> go = false;
  executor_->on_batch = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const std::string id = run();
  const Response ack = train(id, 1);
  const auto poll =
      send(request("/api/v1/retrieve_future",
                   boost::json::serialize(JsonObject{{"request_id", id + ":1"}}), "tml-a"));
  loop_->pass(std::chrono::seconds(31));
  EXPECT_EQ((*poll)->status, 408);
  go = true;
  EXPECT_EQ(result(ack).status, 200);
}

TEST_F(RunsTest, APollOfARequestThatWaitsForANumberTellsWhich) {
  const std::string id = run();
  const Response third = train(id, 3);
  const auto polled = send(request(
      "/api/v1/retrieve_future", boost::json::serialize(Json{{"request_id", id + ":3"}}), "tml-a"));
  loop_->pass(std::chrono::seconds(30));
  ASSERT_TRUE(polled->has_value());
  EXPECT_EQ((*polled)->status, 408);
  EXPECT_EQ((*polled)->body, R"({"queue_state":"active","queue_state_reason":)"
                             R"("seq_id 3 waits for seq_id 1, which has not come"})");
}

TEST_F(RunsTest, WhatBelongsToAnotherKeyIsNotThere) {
  const std::string id = run();
  const Response ack = train(id, 1);
  for (const auto& [path, body] : std::vector<std::pair<std::string, Json>>{
           {"/api/v1/get_info", {{"model_id", id}}},
           {"/api/v1/retrieve_future", {{"request_id", id + ":1"}}},
           {"/api/v1/optim_step", {{"model_id", id}, {"seq_id", 2}}},
           {"/api/v1/save_weights", {{"model_id", id}, {"seq_id", 2}, {"path", "a"}}}})
    EXPECT_EQ(post(path, body, "tml-b").status, 404) << path;
  EXPECT_EQ(result(ack).status, 200);
}

TEST_F(RunsTest, ErrorsNameTheFieldAndAreNever400) {
  EXPECT_EQ(text(post("/api/v1/nothing", JsonObject{}), "detail"),
            "server: there is no POST /api/v1/nothing");
  EXPECT_EQ(text(post("/api/v1/api/v1/create_session", JsonObject{}), "detail"),
            "server: there is no POST /api/v1/api/v1/create_session; the SDK adds /api/v1 itself: "
            "leave it out of base_url");
  EXPECT_EQ(answer(request("/api/v1/create_model", "{", "tml-a")).status, 422);
  const std::string s = session();
  Json other = model(s);
  other.as_object()["base_model"] = "gpt";
  const Response refused = post("/api/v1/create_model", other);
  EXPECT_EQ(refused.status, 422);
  EXPECT_EQ(text(refused, "detail"), "server: base_model 'gpt' is not served here, only null");
  other.as_object()["base_model"] = "nul";
  EXPECT_EQ(text(post("/api/v1/create_model", other), "detail"),
            "server: base_model 'nul' is not served here, only null; did you mean 'null'?");
  other = model(s);
  other.as_object()["lora_config"] = JsonObject{{"rank", 0}};
  EXPECT_EQ(text(post("/api/v1/create_model", other), "detail"),
            "server: lora_config.rank is 0, it must be from 1 to 512");
  other = model(s);
  other.as_object()["optimizer_config"] = JsonObject{{"type", "dimuon"}, {"version", 1}};
  EXPECT_EQ(text(post("/api/v1/create_model", other), "detail"),
            "server: optimizer_config.type is 'dimuon', it must be adamw, the optimizer here");
  other.as_object()["optimizer_config"] = JsonObject{{"type", "adamw"}};
  EXPECT_EQ(post("/api/v1/create_model", other).status, 200);
}

TEST_F(RunsTest, WhatALossDoesNotGetOrTakeIsNamedByTheSdksFields) {
  const std::string id = run();
  const Response missing = train(id, 1, "ppo");
  EXPECT_EQ(text(failure(missing), "error"), "server: data[0] has no logprobs, which ppo reads");
  Request r = request("/api/v1/forward_backward", "", "tml-a");
  r.headers["content-type"] = "application/x-protobuf";
  // loss_fn_config {"beta": 1.0}: an entry of 'beta' and a double.
  r.body = forward_backward_bytes(id, 2, "cross_entropy") + std::string(
                                                                "\x2a\x0f\x0a\x04"
                                                                "beta\x11\0\0\0\0\0\0\xf0\x3f",
                                                                17);
  const Response refused = answer(r);
  EXPECT_EQ(text(failure(refused), "error"),
            "server: loss_fn_config has 'beta'; cross_entropy takes reduction alone, the text sum "
            "or mean");
}

TEST_F(RunsTest, TheRoomOfABodyIsFreeWhenItIsAcknowledged) {
  struct Held : HeldRoom {
    bool grow(int64_t) override { return true; }
    void wait(int64_t, Then) override {}
    void shrink(int64_t) override {}
  };
  std::atomic<bool> go = false;
  executor_->on_batch = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const std::string id = run();
  auto held = std::make_shared<Held>();
  const std::weak_ptr<Held> watched = held;
  Request r =
      request("/api/v1/forward_backward", forward_backward_bytes(id, 1, "cross_entropy"), "tml-a");
  r.headers["content-type"] = "application/x-protobuf";
  r.held = std::move(held);
  const Response ack = answer(std::exchange(r, {}));
  loop_->run();
  EXPECT_TRUE(watched.expired());
  go = true;
  result(ack);
}

TEST_F(RunsTest, TrainingForWhichTheEngineHasNoRoomWaitsForIt) {
  open({.max_queued = 1});
  go_on();
  std::atomic<bool> go = false;
  const std::string id = run();
  executor_->on_batch = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  std::vector<Response> acks;
  for (int64_t seq = 1; seq < 10; ++seq) acks.push_back(train(id, seq));
  EXPECT_GT(core_->queues().num_waiting(), 0);
  go = true;
  for (const Response& ack : acks) EXPECT_EQ(result(ack).content_type, "application/x-protobuf");
  EXPECT_EQ(core_->queues().num_waiting(), 0);
  EXPECT_EQ(done(id).size(), 9U);
}

TEST_F(RunsTest, ANumberFarAheadOfOneThatIsMissingIsRefusedByName) {
  const std::string id = run();
  EXPECT_EQ(step(id, 1 + core::kMaxAhead).status, 200);
  EXPECT_EQ(text(step(id, 2 + core::kMaxAhead), "detail"),
            "server: seq_id is 4098, but 1 of '" + id +
                "' has not come; at most 4096 numbers may be ahead of it");
  result(step(id, 1));
  EXPECT_EQ(step(id, 2 + core::kMaxAhead).status, 200) << "it is not used up";
}

TEST_F(RunsTest, TheEndOfASessionEndsWhatWaitsForANumberThatDidNotCome) {
  const std::string s = session();
  const std::string id = text(result(post("/api/v1/create_model", model(s))), "model_id");
  const Response first = train(id, 1), third = train(id, 3), fourth = step(id, 4);
  EXPECT_EQ(post("/api/v1/sessions/" + s + "/finish", JsonObject{}).status, 200);
  EXPECT_EQ(text(failure(third), "error"),
            "server: the session has ended, and seq_id 2, for which this request waited, did not "
            "come");
  EXPECT_EQ(text(failure(fourth), "category"), "user");
  EXPECT_EQ(result(first).content_type, "application/x-protobuf");
  EXPECT_EQ(train(id, 3).body, third.body);
  for (const Response& late : {train(id, 2), step(id, 5)})
    EXPECT_EQ(text(late, "detail"),
              "server: the session of the run '" + id + "' has finished; make another");
}

}  // namespace
}  // namespace twinkle::server
