// Requests of two clients against the service over a null model.
#include "twinkle/server/service_for_test.h"

namespace twinkle::server {
namespace {

using HandlersTest = ServiceTest;

TEST_F(HandlersTest, ARunTrainsAndStepsInTheOrderOfItsNumbers) {
  const std::string id = run();
  const Response third = train(id, 3), second = step(id, 2), first = train(id, 1);
  EXPECT_EQ(text(first, "request_id"), id + ":1");
  EXPECT_EQ(result(first).content_type, "application/x-protobuf");
  EXPECT_TRUE(parse(result(second)).contains("metrics"));
  result(third);
  EXPECT_EQ(done(id), (std::vector<std::string>{"2/0", "step", "4/0"}));
}

TEST_F(HandlersTest, ARequestThatComesTwiceIsDoneOnce) {
  const std::string id = run();
  EXPECT_EQ(train(id, 1).body, train(id, 1).body);
  EXPECT_EQ(step(id, 2).body, step(id, 2).body);
  result(step(id, 2));
  EXPECT_EQ(done(id), (std::vector<std::string>{"2/0", "step"}));
  const std::string s = session();
  EXPECT_EQ(post("/api/v1/create_model", model(s)).body,
            post("/api/v1/create_model", model(s)).body);
}

TEST_F(HandlersTest, ANumberThatCameIsItsFirstRequestWhateverComesUnderItLater) {
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

TEST_F(HandlersTest, ARetriedUnnamedSaveIsTheFirstThoughItDrawsAnotherNumberOfItsSampler) {
  const std::string id = run();
  const auto save = [&](int64_t number) {
    return post("/api/v1/save_weights_for_sampler",
                {{"model_id", id}, {"seq_id", 1}, {"sampling_session_seq_id", number}});
  };
  const Response first = save(0);
  EXPECT_EQ(save(1).body, first.body);
  const std::string sampler = text(result(first), "sampling_session_id");
  EXPECT_EQ(text(result(save(2)), "sampling_session_id"), sampler);
  EXPECT_EQ(services_->samplers.size(), 1U);
  EXPECT_EQ(services_->runs.find(id)->num_published, 1);
}

TEST_F(HandlersTest, AWindowWithAFailureIsDroppedAndTheNextIsWhole) {
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

TEST_F(HandlersTest, AStepThatIsRefusedUsesItsNumberUpAndLeavesItsWindowToTheNext) {
  const std::string id = run();
  const Response passed = train(id, 1);
  int64_t seq_id = 1;
  for (const char* name : {"learning_rate", "grad_clip_norm"}) {  // the SDK's NaN is null
    JsonObject adam{{"learning_rate", 0.1}};
    adam[name] = nullptr;
    const Response refused =
        post("/api/v1/optim_step", {{"model_id", id}, {"seq_id", ++seq_id}, {"adam_params", adam}});
    EXPECT_EQ(text(refused, "detail"),
              std::string("json: field '") + name + "' is null, expected a number");
  }
  EXPECT_TRUE(parse(result(step(id, 4))).contains("metrics"));
  EXPECT_EQ(done(id).size(), 2U);
  result(passed);
}

TEST_F(HandlersTest, ARefusedRequestUsesItsNumberUpAndBreaksItsWindow) {
  const std::string id = run();
  EXPECT_EQ(text(train(id, 1, ""), "detail"),
            "server: loss_fn is missing; give a loss, such as cross_entropy");
  EXPECT_EQ(train(id, 1, "").status, 422);
  Request broken =
      request("/api/v1/optim_step", R"({"model_id":")" + id + R"(","seq_id":2})", "tml-a");
  EXPECT_EQ(answer(broken).status, 422);
  EXPECT_EQ(answer(broken).status, 422);
  EXPECT_EQ(text(failure(step(id, 3)), "error").substr(0, 43),
            "optim_step: a request of its window failed,");
}

TEST_F(HandlersTest, ARefusedNumberThatComesAgainIsToldWhyUntilAllBeforeItHasEnded) {
  const std::string id = run();
  const std::string why = text(train(id, 2, ""), "detail");
  const std::string begin = "server: seq_id 2 of '" + id + "' was refused";
  EXPECT_EQ(text(train(id, 2), "detail"), begin + ": " + why);
  result(train(id, 1));
  EXPECT_EQ(text(train(id, 2), "detail"), begin);
}

TEST_F(HandlersTest, ARequestThatCannotBeReadUsesItsNumberUpAndBreaksItsWindow) {
  const std::string id = run();
  Request broken = request("/api/v1/forward_backward",
                           forward_backward_bytes(id, 1, "cross_entropy") + "\x1a\x7f", "tml-a");
  broken.headers["content-type"] = "application/x-protobuf";
  EXPECT_EQ(answer(broken).status, 422);
  EXPECT_EQ(text(failure(step(id, 2)), "error").substr(0, 43),
            "optim_step: a request of its window failed,");
  EXPECT_EQ(text(train(id, 1), "detail"), "server: seq_id 1 of '" + id + "' was refused");
  result(train(id, 3));
  EXPECT_TRUE(parse(result(step(id, 4))).contains("metrics"));
  broken.body = forward_backward_bytes("another", 1, "cross_entropy") + "\x1a\x7f";
  EXPECT_EQ(answer(broken).status, 404);
}

TEST_F(HandlersTest, NumbersThatAreNotFiniteAreRefusedByTheirField) {
  const std::string id = run();
  std::string bytes = forward_backward_bytes(id, 1, "cross_entropy");
  const size_t at = bytes.rfind("\x80\x3f", std::string::npos);  // the last weight's half
  bytes[at + 1] = '\x7f';                                        // 0x7f800000
  Request r = request("/api/v1/forward_backward", bytes, "tml-a");
  r.headers["content-type"] = "application/x-protobuf";
  EXPECT_EQ(text(answer(r), "detail"),
            "server: data[0].weights holds inf at 2, its numbers must be finite");
}

TEST_F(HandlersTest, APromptWithoutTokensAndParametersThatAreNoObjectAreNamed) {
  const std::string s = session();
  const std::string id =
      text(post("/api/v1/create_sampling_session",
                {{"session_id", s}, {"sampling_session_seq_id", 0}, {"base_model", "null"}}),
           "sampling_session_id");
  EXPECT_EQ(text(post("/api/v1/asample", {{"sampling_session_id", id},
                                          {"seq_id", 0},
                                          {"prompt", {{"chunks", {{{"type", "encoded_text"}}}}}}}),
                 "detail"),
            "server: prompt has a chunk whose tokens are missing; give an array");
  for (const Json& params : {Json(JsonArray{}), Json(5)})
    EXPECT_EQ(text(post("/api/v1/asample", {{"sampling_session_id", id},
                                            {"seq_id", 0},
                                            {"prompt", {{"chunks", {{{"tokens", {1, 2}}}}}}},
                                            {"sampling_params", params}}),
                   "detail"),
              "server: sampling_params must be an object, such as {\"max_tokens\": 16}");
}

TEST_F(HandlersTest, NamesOfCheckpointsLeaveRoomForWhatIsAddedToThem) {
  const std::string id = run();
  const auto save = [&](int64_t seq_id, size_t length) {
    return post("/api/v1/save_weights",
                {{"model_id", id}, {"seq_id", seq_id}, {"path", std::string(length, 'a')}});
  };
  EXPECT_EQ(save(1, 200).status, 200);
  const std::string detail = text(save(2, 201), "detail");
  EXPECT_NE(detail.find("must be 1 to 200 letters"), std::string::npos) << detail;
}

TEST_F(HandlersTest, ANameMustNotBeginWithADotWhichUsesItsNumberUpThroughAStartToo) {
  go_on();
  const std::string id = run(), name = ".x.partial-0123456789ab";
  const Json body = {{"model_id", id}, {"seq_id", 1}, {"path", name}};
  const Response refused = post("/api/v1/save_weights", body);
  EXPECT_EQ(refused.status, 422);
  EXPECT_EQ(
      text(refused, "detail"),
      "server: the name '" + name + "' of a checkpoint must not begin with '.'; choose another");
  close();
  open();
  go_on();
  EXPECT_EQ(post("/api/v1/save_weights", body).status, 422) << "its number is used up";
  EXPECT_TRUE(parse(result(step(id, 2))).contains("metrics"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "checkpoints" / id / "weights" / name));
}

TEST_F(HandlersTest, ANameIsTakenFromTheMomentThatItsSaveIsAcceptedUntilThatFails) {
  std::atomic<bool> go = false, fails = true;
  executor_->on_write = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (fails) fail(Code::kInternal, "null: the disk is full");
  };
  const std::string id = run();
  const auto save = [&](int64_t seq_id, const std::string& kind = "save_weights") {
    return post("/api/v1/" + kind, {{"model_id", id}, {"seq_id", seq_id}, {"path", "a"}});
  };
  const Response first = save(1);
  EXPECT_EQ(text(save(2), "detail"),
            "server: the checkpoint 'tinker://" + id +
                "/weights/a' exists, or is being saved; choose another name, or give "
                "overwrite=True");
  const Response other = save(3, "save_weights_for_sampler");
  EXPECT_EQ(save(3, "save_weights_for_sampler").body, other.body) << "it is the same request";
  EXPECT_EQ(text(save(4, "save_weights_for_sampler"), "detail"),
            "server: the checkpoint 'tinker://" + id +
                "/sampler_weights/a' exists, or is being saved; choose another name");
  go = true;
  EXPECT_EQ(text(failure(first), "error"), "null: the disk is full");
  failure(other);
  fails = false;
  EXPECT_TRUE(parse(result(save(5))).contains("path"));
  EXPECT_EQ(save(6).status, 422);
}

TEST_F(HandlersTest, ADiskThatRefusesASaveIsTheServersFailure) {
  executor_->on_write = [] { fail(Code::kInternal, "null: the disk is full"); };
  const std::string id = run();
  const Response told =
      failure(post("/api/v1/save_weights", {{"model_id", id}, {"seq_id", 1}, {"path", "a"}}));
  EXPECT_EQ(text(told, "error"), "null: the disk is full");
  EXPECT_EQ(text(told, "category"), "server");
}

TEST_F(HandlersTest, APollOfWorkThatRunsWaitsAndIsAnswered408) {
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

TEST_F(HandlersTest, APollOfARequestThatWaitsForANumberTellsWhich) {
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

TEST_F(HandlersTest, WhatBelongsToAnotherKeyIsNotThere) {
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

TEST_F(HandlersTest, ErrorsNameTheFieldAndAreNever400) {
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

TEST_F(HandlersTest, WhatALossDoesNotGetOrTakeIsNamedByTheSdksFields) {
  const std::string id = run();
  const Response missing = train(id, 1, "ppo");
  EXPECT_EQ(missing.status, 422);
  EXPECT_EQ(text(missing, "detail"), "server: data[0] has no logprobs, which ppo reads");
  Request r = request("/api/v1/forward_backward", "", "tml-a");
  r.headers["content-type"] = "application/x-protobuf";
  // loss_fn_config {"beta": 1.0}: an entry of 'beta' and a double.
  r.body = forward_backward_bytes(id, 2, "cross_entropy") + std::string(
                                                                "\x2a\x0f\x0a\x04"
                                                                "beta\x11\0\0\0\0\0\0\xf0\x3f",
                                                                17);
  const Response refused = answer(r);
  EXPECT_EQ(refused.status, 422);
  EXPECT_EQ(text(refused, "detail"),
            "server: loss_fn_config has 'beta'; cross_entropy takes reduction alone, the text sum "
            "or mean");
}

TEST_F(HandlersTest, ASamplerOfTheBaseModelAnswersAndARetryIsTheSameRequest) {
  const std::string s = session();
  const std::string id =
      text(post("/api/v1/create_sampling_session",
                {{"session_id", s}, {"sampling_session_seq_id", 0}, {"base_model", "null"}}),
           "sampling_session_id");
  Json body = {{"sampling_session_id", id},
               {"seq_id", 0},
               {"num_samples", 2},
               {"prompt", {{"chunks", {{{"tokens", {1, 2, 3}}, {"type", "encoded_text"}}}}}},
               {"sampling_params", {{"max_tokens", 3}}}};
  const Response ack = post("/api/v1/asample", body);
  EXPECT_EQ(post("/api/v1/asample", body).body, ack.body);
  EXPECT_EQ(result(ack).content_type, "application/x-protobuf");
  EXPECT_EQ(parse(ack).at("sample_sequence_ids").as_array().size(), 2U);
  body.as_object()["num_samples"] = 3;
  EXPECT_EQ(post("/api/v1/asample", body).body, ack.body) << "the first's ids";
}

TEST_F(HandlersTest, ASamplerThatIsMadeTwiceIsOne) {
  const std::string s = session();
  const auto make = [&](int64_t number, const char* name) {
    return post("/api/v1/create_sampling_session",
                {{"session_id", s}, {"sampling_session_seq_id", number}, {"base_model", name}});
  };
  const Response first = make(0, "null");
  EXPECT_EQ(first.status, 200) << first.body;
  EXPECT_EQ(make(0, "null").body, first.body);
  EXPECT_EQ(make(0, "another").body, first.body) << "whatever the retry says";
  EXPECT_NE(make(1, "null").body, first.body);
  EXPECT_EQ(services_->samplers.size(), 2U);
}

TEST_F(HandlersTest, TheRoomOfABodyIsFreeWhenItIsAcknowledged) {
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

TEST_F(HandlersTest, TrainingForWhichTheEngineHasNoRoomWaitsForIt) {
  open({.max_queued = 1});
  std::atomic<bool> go = false;
  const std::string id = run();
  executor_->on_batch = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  std::vector<Response> acks;
  for (int64_t seq = 1; seq < 10; ++seq) acks.push_back(train(id, seq));
  EXPECT_GT(services_->operations.num_waiting(), 0);
  go = true;
  for (const Response& ack : acks) EXPECT_EQ(result(ack).content_type, "application/x-protobuf");
  EXPECT_EQ(services_->operations.num_waiting(), 0);
  EXPECT_EQ(done(id).size(), 9U);
}

TEST_F(HandlersTest, ASampleForWhichTheEngineHasNoRoomIs429) {
  open({.max_queued = 2});
  std::atomic<bool> go = false;
  executor_->on_step = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const std::string id = text(
      post("/api/v1/create_sampling_session",
           {{"session_id", session()}, {"sampling_session_seq_id", 0}, {"base_model", "null"}}),
      "sampling_session_id");
  const auto sample = [&](int64_t seq) {
    return post("/api/v1/asample",
                {{"sampling_session_id", id},
                 {"seq_id", seq},
                 {"prompt", {{"chunks", {{{"tokens", {1, 2}}, {"type", "encoded_text"}}}}}},
                 {"sampling_params", {{"max_tokens", 2}}}});
  };
  std::vector<Response> acks;
  Response last;
  for (int64_t seq = 0; seq < 5 && (last = sample(seq)).status == 200; ++seq) acks.push_back(last);
  EXPECT_EQ(last.status, 429) << last.body;
  go = true;
  for (const Response& ack : acks) EXPECT_EQ(result(ack).status, 200);
  EXPECT_EQ(result(sample(std::ssize(acks))).status, 200) << "its number is not used up";
}

TEST_F(HandlersTest, ANumberFarAheadOfOneThatIsMissingIsRefusedByName) {
  const std::string id = run();
  EXPECT_EQ(step(id, 1 + Runs::kMaxAhead).status, 200);
  EXPECT_EQ(text(step(id, 2 + Runs::kMaxAhead), "detail"),
            "server: seq_id is 4098, but 1 of '" + id +
                "' has not come; at most 4096 numbers may be ahead of it");
  result(step(id, 1));
  EXPECT_EQ(step(id, 2 + Runs::kMaxAhead).status, 200) << "it is not used up";
}

TEST_F(HandlersTest, TheEndOfASessionEndsWhatWaitsForANumberThatDidNotCome) {
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
