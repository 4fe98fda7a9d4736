// The service with keys of two tenants, of which alice has one of everything.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "twinkle/serving/api/service_for_test.h"

namespace twinkle::server {

class KeysTest : public ServiceTest {
 protected:
  KeysTest() {
    alice_ = make("alice", {"train", "sample", "metrics"});
    bob_ = make("bob", {"train", "sample", "metrics"});
    expired_ = make("alice", {"train", "sample"}, 1001);
    revoked_ = make("revoked");
    revoke("revoked");
    ask_for_keys(keys_, {.now = [this] { return now_; }});
  }
  ~KeysTest() override {  // while the clock that it asks is there
    router_.reset();
    kill();
  }
  void restart() {
    ServiceTest::restart();
    ask_for_keys(keys_, {.now = [this] { return now_; }});
  }
  std::string make(const std::string& tenant, std::vector<std::string> scopes = {"train", "sample"},
                   int64_t expires = 0) {
    ++now_;
    const auto made =
        keys_.create({.tenant = tenant, .scopes = std::move(scopes), .expires = expires});
    see_keys();
    return made.text;
  }
  void revoke(const std::string& tenant) {
    ++now_;
    keys_.revoke([&](const store::Key& key) { return key.tenant == tenant; }, now_);
  }

  // Things of alice's, to be named in requests.
  struct Owned {
    std::string session, run, sampler, future, checkpoint;
    std::string spare;                      // a session without runs
    std::string finished_run, deleted_run;  // to be so
    // Names of checkpoints of the run, next to `checkpoint`, which is "a"; the last is published.
    std::string kept = "k", deleted = "d", published = "p";
  };
  std::string save(const std::string& run, int64_t seq_id, const std::string& name) {
    const Json body = {{"model_id", run}, {"seq_id", seq_id}, {"path", name}};
    return text(result(post("/api/v1/save_weights", body, alice_), alice_), "path");
  }
  Owned owned() {
    Owned out;
    out.session = text(post("/api/v1/create_session", JsonObject{}, alice_), "session_id");
    const Response created = post("/api/v1/create_model", model(out.session), alice_);
    out.future = text(created, "request_id");
    out.run = text(result(created, alice_), "model_id");
    const Json sampler = {
        {"session_id", out.session}, {"sampling_session_seq_id", 0}, {"base_model", "null"}};
    out.sampler =
        text(post("/api/v1/create_sampling_session", sampler, alice_), "sampling_session_id");
    out.checkpoint = save(out.run, 1, "a");
    for (int64_t seq_id = 1; const std::string& name : {out.kept, out.deleted, out.published})
      save(out.run, ++seq_id, name);
    const std::string publish = "/checkpoints/weights/" + out.published + "/publish";
    EXPECT_EQ(post("/api/v1/training_runs/" + out.run + publish, JsonObject{}, alice_).status, 200);
    out.finished_run = run(alice_);
    out.deleted_run = run(alice_);
    out.spare = text(post("/api/v1/create_session", JsonObject{}, alice_), "session_id");
    return out;
  }
  // The status of the request with another key, or with none.
  int status(Request r, const std::optional<std::string>& key) {
    r.headers.erase("x-api-key");
    if (key) r.headers["x-api-key"] = *key;
    return answer(std::move(r)).status;
  }

  int64_t now_ = 1000;
  std::string alice_, bob_, expired_, revoked_;
  const store::KeyFile keys_{dir_.path()};
};

}  // namespace twinkle::server
