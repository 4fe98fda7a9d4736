// Keys: things of others stay hidden, and revoked ones read and begin nothing.
#include "twinkle/serving/api/keys_for_test.h"

namespace twinkle::server {
namespace {

TEST_F(KeysTest, AForeignCheckpointIs404InAnOwnSession) {
  const Owned a = owned();
  const std::string session =
      text(post("/api/v1/create_session", JsonObject{}, bob_), "session_id");
  for (const auto& [path, field] :
       {std::pair("load_weights", "path"), std::pair("create_sampling_session", "model_path")}) {
    const Json body = {{"session_id", session},
                       {"model_seq_id", 0},
                       {"sampling_session_seq_id", 0},
                       {field, a.checkpoint}};
    const Response refused = post(std::string("/api/v1/") + path, body, bob_);
    EXPECT_EQ(refused.status, 404);
    EXPECT_EQ(refused.body, "{\"detail\":\"server: " + std::string(field) + " '" + a.checkpoint +
                                "' is not known; paths are tinker://RUN/weights/NAME and "
                                "tinker://RUN/sampler_weights/NAME\"}");
  }
}

TEST_F(KeysTest, ARevokedKeyMayFetchWhatBeganBeforeAndNothingElse) {
  const std::string key = make("carol"), other = make("carol"), dave = make("dave");
  const auto session = [&](const std::string& k) {
    return text(post("/api/v1/create_session", JsonObject{}, k), "session_id");
  };
  const auto begin = [&](const std::string& k) {
    return text(post("/api/v1/create_model", model(session(k)), k), "request_id");
  };
  const auto fetch = [&](const std::string& promise) {
    return post("/api/v1/retrieve_future", {{"request_id", promise}}, key).status;
  };
  const std::string before = begin(key), foreign = begin(dave);
  const std::string id = keys_.read().at(4).id;
  ++now_;
  keys_.revoke([&](const store::Key& k) { return k.id == id; }, now_);
  see_keys();
  const std::string own_session = session(other);
  const std::string after = begin(other);
  EXPECT_EQ(fetch(before), 200);
  for (const std::string& promise : {after, foreign, std::string("none")})
    EXPECT_EQ(fetch(promise), 401) << promise;
  const Response refused = post("/api/v1/create_model", model(own_session), key);
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(text(refused, "detail"),
            "server: the key " + id + " is revoked; ask the operator for another");
}

TEST_F(KeysTest, APollThatIsHeldWhenItsKeyEndsIsAnsweredAndTheNextIsNot) {
  const std::string key = make("alice", {"train"}, now_ + 10);
  const std::string s = text(post("/api/v1/create_session", JsonObject{}, key), "session_id");
  const std::string run =
      text(result(post("/api/v1/create_model", model(s), key), key), "model_id");
  const auto step = [&](int64_t seq_id, const std::string& by) {
    return post("/api/v1/optim_step",
                {{"model_id", run}, {"seq_id", seq_id}, {"adam_params", {{"learning_rate", 0.1}}}},
                by);
  };
  const std::string poll =
      boost::json::serialize(JsonObject{{"request_id", text(step(2, key), "request_id")}});
  const auto held = send(request("/api/v1/retrieve_future", poll, key));
  now_ += 10;
  EXPECT_FALSE(held->has_value());
  EXPECT_EQ(step(1, alice_).status, 200);
  EXPECT_TRUE(until([&] { return held->has_value(); }));
  EXPECT_EQ((*held)->status, 200) << (*held)->body;
  EXPECT_EQ(answer(request("/api/v1/retrieve_future", poll, key)).status, 401);
}

TEST_F(KeysTest, WhatIsRefusedForItsKeyIsNotWrittenDown) {
  const Owned a = owned();
  const std::string samples = make("alice", {"sample"});
  const Request make_run =
      request("/api/v1/create_model", boost::json::serialize(model(a.spare)), alice_);
  const uint64_t before = core_->log().sequence();
  for (const std::string& key : {std::string(), std::string("tml-x"), expired_, revoked_})
    EXPECT_EQ(status(make_run, key), 401);
  EXPECT_EQ(status(make_run, samples), 403);
  EXPECT_EQ(core_->log().sequence(), before);
  EXPECT_EQ(status(make_run, alice_), 200);
  EXPECT_GT(core_->log().sequence(), before);
}

TEST_F(KeysTest, AProtobufBodyIsNotReadBeforeItsRunIsTheCallers) {
  const Owned a = owned();
  std::string bytes = {'\x0a', static_cast<char>(a.run.size())};
  bytes += a.run + "\x10\x01\x1a\x02\x0a\x05";  // a datum that ends too early
  Request r = request("/api/v1/forward_backward", bytes, bob_);
  r.headers["content-type"] = "application/x-protobuf";
  EXPECT_EQ(answer(r).status, 404);
  r.headers["x-api-key"] = alice_;
  EXPECT_EQ(answer(r).status, 200) << "its future has what is wrong";
}

TEST_F(KeysTest, TheRunThatIsCheckedIsTheOneThatIsTrained) {
  const Owned a = owned();
  const std::string b_session =
      text(post("/api/v1/create_session", JsonObject{}, bob_), "session_id");
  const std::string b =
      text(result(post("/api/v1/create_model", model(b_session), bob_), bob_), "model_id");
  std::string bytes = forward_backward_bytes(b, 1, "cross_entropy") + '\x0a' +
                      static_cast<char>(a.run.size()) + a.run;
  Request r = request("/api/v1/forward_backward", bytes, bob_);
  r.headers["content-type"] = "application/x-protobuf";
  EXPECT_EQ(answer(r).status, 404);  // the last of two model_ids counts
  bytes =
      forward_backward_bytes(a.run, 1, "cross_entropy") + '\x0a' + static_cast<char>(b.size()) + b;
  r.body = bytes;
  EXPECT_EQ(text(answer(r), "model_id"), b);
}

// A published checkpoint is read by every key, and written by its owner alone.
TEST_F(KeysTest, APublishedCheckpointIsLoadedAndSampledByOthersAndStaysItsOwners) {
  const Owned a = owned();
  const std::string run = "/api/v1/training_runs/" + a.run;
  const std::string path = "tinker://" + a.run + "/weights/" + a.published;
  const std::string of = run + "/checkpoints/weights/" + a.published;
  const std::string session =
      text(post("/api/v1/create_session", JsonObject{}, bob_), "session_id");
  const Json load = {{"session_id", session}, {"model_seq_id", 0}, {"path", path}};
  const std::string loaded =
      text(result(post("/api/v1/load_weights", load, bob_), bob_), "model_id");
  EXPECT_EQ(text(post("/api/v1/weights_info", {{"tinker_path", path}}, bob_), "base_model"),
            "null");
  const auto sampler = [&](int64_t number) {
    const Json body = {
        {"session_id", session}, {"sampling_session_seq_id", number}, {"model_path", path}};
    return post("/api/v1/create_sampling_session", body, bob_);
  };
  const std::string mine = text(sampler(0), "sampling_session_id");
  EXPECT_EQ(post(of + "/publish", JsonObject{}, bob_).status, 404);
  EXPECT_EQ(get(of + "/publish", bob_, "DELETE").status, 404);
  EXPECT_EQ(get(of, bob_, "DELETE").status, 404);
  Request ttl = request(of + "/ttl", R"({"ttl_seconds": 1})", bob_);
  ttl.method = "PUT";
  EXPECT_EQ(answer(ttl).status, 404);
  for (const std::string& other : {run, run + "/checkpoints"})
    EXPECT_EQ(get(other, bob_).status, 404) << "its run is not published";
  EXPECT_EQ(parse(get("/api/v1/checkpoints", bob_)).at("checkpoints").as_array().size(), 0U);
  restart();
  EXPECT_EQ(sampler(1).status, 200) << "through a start";
  EXPECT_EQ(get(of + "/publish", alice_, "DELETE").status, 200);
  EXPECT_EQ(sampler(2).status, 404) << "it is published no more";
  EXPECT_EQ(text(sampler(0), "sampling_session_id"), mine) << "what was made stays";
  EXPECT_EQ(get("/api/v1/training_runs/" + loaded, bob_).status, 200);
}

}  // namespace
}  // namespace twinkle::server
