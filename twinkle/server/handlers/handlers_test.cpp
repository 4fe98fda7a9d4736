// Requests of two clients against the service over a null model.
#include "twinkle/server/service_for_test.h"

namespace twinkle::server {
namespace {

// ForwardBackwardRequest of one datum: tokens 1, 2, 3, targets 2, 3, 4 and weights 0, 1, 1.
std::string forward_backward_bytes(const std::string& run, int64_t seq_id,
                                   const std::string& loss) {
  constexpr std::string_view kDatum =
      "1a640a100a0e0a0c01000000020000000300000012300a0d7461726765745f746f6b656e73121f0a180200000000"
      "0000"
      "0003000000000000000400000000000000180222010312"
      "1e0a077765696768747312130a0c000000000000803f0000803f1801220103";
  std::string out = {'\x0a', static_cast<char>(run.size())};
  out += run + '\x10' + static_cast<char>(seq_id);
  for (size_t i = 0; i + 1 < kDatum.size(); i += 2)
    out += static_cast<char>(std::stoi(std::string(kDatum.substr(i, 2)), nullptr, 16));
  return out + '\x22' + static_cast<char>(loss.size()) + loss;
}

class HandlersTest : public ServiceTest {
 protected:
  std::string session(const std::string& key = "tml-a") {
    return text(post("/api/v1/create_session", JsonObject{}, key), "session_id");
  }
  static std::string text(const Response& response, const char* name) {
    return std::string(parse(response).at(name).as_string());
  }
  static Json model(const std::string& session) {
    return {{"session_id", session},
            {"model_seq_id", 0},
            {"base_model", "null"},
            {"lora_config", {{"rank", 8}, {"train_unembed", false}}}};
  }
  std::string run(const std::string& key = "tml-a") {
    const Response ack = post("/api/v1/create_model", model(session(key)), key);
    return text(result(ack, key), "model_id");
  }
  Response train(const std::string& run, int64_t seq_id,
                 const std::string& loss = "cross_entropy") {
    Request r =
        request("/api/v1/forward_backward", forward_backward_bytes(run, seq_id, loss), "tml-a");
    r.headers["content-type"] = "application/x-protobuf";
    return answer(r);
  }
  Response step(const std::string& run, int64_t seq_id, double lr = 0.1) {
    return post("/api/v1/optim_step",
                {{"model_id", run}, {"seq_id", seq_id}, {"adam_params", {{"learning_rate", lr}}}});
  }
  // What has been done to the engine's tenant, in order.
  std::vector<std::string> done(const std::string& run) {
    std::vector<engine::Operation> one;
    one.emplace_back(engine::Inspect{run});
    const auto result =
        std::get<engine::InspectResult>(dispatcher_->submit(std::move(one))[0].get());
    std::vector<std::string> out;
    for (const auto& t : result.tensors) out.push_back(t.name.substr(0, 4));
    return out;
  }
};

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

TEST_F(HandlersTest, AWindowWithAFailureIsDroppedAndTheNextIsWhole) {
  const std::string id = run();
  const Response good = train(id, 1), bad = train(id, 2, "fail"), stepped = step(id, 3);
  EXPECT_EQ(text(result(bad), "category"), "user");
  EXPECT_EQ(text(result(stepped), "error").substr(0, 43),
            "optim_step: a request of its window failed,");
  const Response next = train(id, 4), ends = step(id, 5);
  EXPECT_TRUE(parse(result(ends)).contains("metrics"));
  EXPECT_EQ(done(id).back(), "step");
  result(good), result(next);
}

TEST_F(HandlersTest, ARefusedRequestUsesItsNumberUpAndBreaksItsWindow) {
  const std::string id = run();
  const Response refused = step(id, 1, std::nan(""));
  EXPECT_EQ(refused.status, 422);
  Request broken =
      request("/api/v1/optim_step", R"({"model_id":")" + id + R"(","seq_id":2})", "tml-a");
  EXPECT_EQ(answer(broken).status, 422);
  EXPECT_EQ(answer(broken).status, 422);
}

TEST_F(HandlersTest, APollOfWorkThatRunsWaitsAndIsAnswered408) {
  std::atomic<bool> go = false;
  executor_.on_batch = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const std::string id = run();
  const Response ack = train(id, 1);
  const auto poll =
      send(request("/api/v1/retrieve_future",
                   boost::json::serialize(JsonObject{{"request_id", id + ":1"}}), "tml-a"));
  loop_.pass(std::chrono::seconds(31));
  EXPECT_EQ((*poll)->status, 408);
  go = true;
  EXPECT_EQ(result(ack).status, 200);
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
  EXPECT_EQ(post("/api/v1/nothing", JsonObject{}).status, 404);
  EXPECT_EQ(answer(request("/api/v1/create_model", "{", "tml-a")).status, 422);
  const std::string s = session();
  Json other = model(s);
  other.as_object()["base_model"] = "gpt";
  const Response refused = post("/api/v1/create_model", other);
  EXPECT_EQ(refused.status, 422);
  EXPECT_EQ(text(refused, "detail"), "server: base_model 'gpt' is not served here, only null");
  other = model(s);
  other.as_object()["lora_config"] = JsonObject{{"rank", 0}};
  EXPECT_EQ(text(post("/api/v1/create_model", other), "detail"),
            "server: lora_config.rank is 0, it must be from 1 to 512");
}

TEST_F(HandlersTest, ASamplerOfTheBaseModelAnswersAndARetryIsTheSameRequest) {
  const std::string s = session();
  const std::string id =
      text(post("/api/v1/create_sampling_session",
                {{"session_id", s}, {"sampling_session_seq_id", 0}, {"base_model", "null"}}),
           "sampling_session_id");
  const Json body = {{"sampling_session_id", id},
                     {"seq_id", 0},
                     {"num_samples", 1},
                     {"prompt", {{"chunks", {{{"tokens", {1, 2, 3}}, {"type", "encoded_text"}}}}}},
                     {"sampling_params", {{"max_tokens", 3}}}};
  const Response ack = post("/api/v1/asample", body);
  EXPECT_EQ(post("/api/v1/asample", body).body, ack.body);
  EXPECT_EQ(result(ack).content_type, "application/x-protobuf");
}

TEST_F(HandlersTest, AFullQueueIs429OfAsampleAnd503OfTraining) {
  open({.max_queued = 1});
  std::atomic<bool> go = false;
  const std::string id = run();
  executor_.on_batch = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  std::vector<Response> acks{train(id, 1)};
  Response full = {};
  for (int64_t seq = 2; full.status == 200 && seq < 10; ++seq) full = train(id, seq);
  EXPECT_EQ(full.status, 503);
  go = true;
  result(acks[0]);
}

}  // namespace
}  // namespace twinkle::server
