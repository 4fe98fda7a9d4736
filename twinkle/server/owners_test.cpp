// Walks routes.def: what each route answers to callers without rights. A route without a case here
// fails, and so does a case without a route.
#include "twinkle/server/owners.h"

#include <set>
#include <sstream>

#include "twinkle/base/file.h"
#include "twinkle/server/service_for_test.h"
#include "twinkle/text/tiny_model_test.h"

namespace twinkle::server {
namespace {

class OwnersTest : public ServiceTest {
 protected:
  OwnersTest() {
    alice_ = make("alice", {"train", "sample", "metrics"});
    bob_ = make("bob", {"train", "sample", "metrics"});
    expired_ = make("alice", {"train", "sample"}, 1001);
    revoked_ = make("revoked");
    revoke("revoked");
    ask_for_keys(keys_, {.now = [this] { return now_; }});
    backend_->facts.directory = model_.directory().string();
  }
  ~OwnersTest() override { close(); }  // while the clock that it asks is there
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

  // What alice has, to be named in requests.
  struct Owned {
    std::string session, run, sampler, promise, checkpoint;
    std::string spare;  // a session without runs
  };
  Owned owned() {
    Owned out;
    out.session = text(post("/api/v1/create_session", JsonObject{}, alice_), "session_id");
    const Response created = post("/api/v1/create_model", model(out.session), alice_);
    out.promise = text(created, "request_id");
    out.run = text(result(created, alice_), "model_id");
    const Json sampler = {
        {"session_id", out.session}, {"sampling_session_seq_id", 0}, {"base_model", "null"}};
    out.sampler =
        text(post("/api/v1/create_sampling_session", sampler, alice_), "sampling_session_id");
    const Json save = {{"model_id", out.run}, {"seq_id", 1}, {"path", "a"}};
    const Response saved = post("/api/v1/save_weights", save, alice_);
    out.checkpoint = text(result(saved, alice_), "path");
    out.spare = text(post("/api/v1/create_session", JsonObject{}, alice_), "session_id");
    return out;
  }
  // A request that alice may make; and whether it names what is hers.
  struct Case {
    Request request;
    bool names = true;
    int status = 200;  // that alice gets
  };
  std::map<std::string, Case> cases(const Owned& a) {
    std::map<std::string, Case> out;
    const auto add = [&](const std::string& route, const Json& body, bool names = true,
                         const std::string& path = "") {
      const size_t space = route.find(' ');
      Request r = request(path.empty() ? route.substr(space + 1) : path,
                          boost::json::serialize(body), alice_);
      r.method = route.substr(0, space);
      out[route] = {.request = std::move(r), .names = names};
    };
    const std::string v1 = "/api/v1/";
    const Json nothing = JsonObject{};
    add("GET " + v1 + "healthz", nothing, false);
    for (const char* name : {"GET /hf/{path...}", "HEAD /hf/{path...}"}) {
      add(name, nothing, false, "/hf/none/resolve/main/config.json");
      out[name].status = 404;  // its model is not served
    }
    for (const char* name :
         {"GET /healthz", "HEAD /healthz", "GET /readyz", "GET /metrics", "GET /api/v1/usage"})
      add(name, nothing, false);
    for (const char* name :
         {"client/config", "client/dynamic_config", "create_session", "telemetry"})
      add("POST " + v1 + name, nothing, false);
    add("GET " + v1 + "get_server_capabilities", nothing, false);
    add("POST " + v1 + "session_heartbeat", {{"session_id", a.session}});
    add("POST " + v1 + "sessions/{session_id}/finish", nothing, true,
        v1 + "sessions/" + a.spare + "/finish");
    add("POST " + v1 + "create_model", model(a.session));
    add("POST " + v1 + "get_info", {{"model_id", a.run}});
    add("GET " + v1 + "training_runs/{model_id}", nothing, true, v1 + "training_runs/" + a.run);
    add("POST " + v1 + "weights_info", {{"tinker_path", a.checkpoint}});
    add("POST " + v1 + "forward_backward", nothing);
    out["POST " + v1 + "forward_backward"].request.body =
        forward_backward_bytes(a.run, 2, "cross_entropy");
    out["POST " + v1 + "forward_backward"].request.headers["content-type"] =
        "application/x-protobuf";
    add("POST " + v1 + "optim_step",
        {{"model_id", a.run}, {"seq_id", 3}, {"adam_params", {{"learning_rate", 0.1}}}});
    add("POST " + v1 + "save_weights", {{"model_id", a.run}, {"seq_id", 4}, {"path", "b"}});
    add("POST " + v1 + "save_weights_for_sampler", {{"model_id", a.run}, {"seq_id", 5}});
    add("POST " + v1 + "save_weights_external", {{"model_id", a.run}, {"seq_id", 6}});
    out["POST " + v1 + "save_weights_external"].status = 404;  // it is not there
    add("POST " + v1 + "load_weights",
        {{"session_id", a.session}, {"model_seq_id", 1}, {"path", a.checkpoint}});
    add("POST " + v1 + "create_sampling_session",
        {{"session_id", a.session}, {"sampling_session_seq_id", 1}, {"model_path", a.checkpoint}});
    add("GET " + v1 + "samplers/{sampling_session_id}", nothing, true,
        v1 + "samplers/" + a.sampler);
    add("POST " + v1 + "asample", {{"sampling_session_id", a.sampler},
                                   {"seq_id", 0},
                                   {"prompt", {{"chunks", {{{"tokens", {1, 2}}}}}}},
                                   {"sampling_params", {{"max_tokens", 2}}}});
    add("POST " + v1 + "retrieve_future", {{"request_id", a.promise}});
    for (const std::string base : {"/v1/", "/api/v1/"}) {
      add("GET " + base + "models", nothing, false);
      add("POST " + base + "completions", {{"model", "null"}, {"prompt", "a"}, {"max_tokens", 1}},
          false);
      add("POST " + base + "chat/completions",
          {{"model", "null"},
           {"messages", {{{"role", "user"}, {"content", "a"}}}},
           {"max_tokens", 1}},
          false);
    }
    return out;
  }
  // The status of the request with another key, or with none.
  int status(Request r, const std::optional<std::string>& key) {
    r.headers.erase("x-api-key");
    if (key) r.headers["x-api-key"] = *key;
    return answer(std::move(r)).status;
  }
  static std::string name_of(const Route& r) {
    return std::string(r.verb) + " " + std::string(r.path);
  }

  text::TinyModel model_;
  int64_t now_ = 1000;
  std::string alice_, bob_, expired_, revoked_;
  const store::KeyFile keys_{dir_.path()};
};

TEST_F(OwnersTest, EveryRouteHasACaseAndEveryCaseARoute) {
  const auto all = cases({});
  std::set<std::string> names;
  for (const Route& r : routes()) {
    EXPECT_TRUE(all.contains(name_of(r))) << name_of(r) << " has no case in owners_test.cpp";
    names.insert(name_of(r));
  }
  for (const auto& [name, one] : all) EXPECT_TRUE(names.contains(name)) << name;
}

TEST_F(OwnersTest, NoKeyAnUnknownOneAnExpiredOneAndARevokedOneAre401) {
  const auto all = cases(owned());
  for (const Route& r : routes()) {
    const Case& one = all.at(name_of(r));
    const Request& request = one.request;
    const bool is_public = r.path.ends_with("/healthz") || r.path == "/readyz";
    const int want = is_public ? one.status : 401;
    EXPECT_EQ(status(request, std::nullopt), want) << name_of(r);
    for (const std::string& key : {std::string(), std::string("tml-x"), expired_, revoked_})
      EXPECT_EQ(status(request, key), want) << name_of(r) << " with " << key;
  }
}

TEST_F(OwnersTest, WhoMayNotComeInIsToldByItsHeadAlone) {
  BodyRoom room({}, *loop_);
  std::string who;
  const auto status_of = [&](Head head, const std::string& key) {
    if (head.method == "POST") head.content_length = 1 << 20;
    head.headers["x-api-key"] = key;
    int out = 0;
    admit(head, head.path, *services_, room, [&](const Admission& admission) {
      out = admission.max_body_bytes < 0 ? admission.refused.status : 200;
      who = admission.tenant + " " + admission.key_id;
    });
    return out;
  };
  const auto all = cases(owned());
  const std::string narrow = make("alice", {"metrics"});
  for (const Route& r : routes()) {
    const Head& head = all.at(name_of(r)).request;
    const bool is_public = r.scope == Scope::kPublic;
    for (const std::string& key : {std::string(), std::string("tml-x"), expired_, revoked_})
      EXPECT_EQ(status_of(head, key), is_public ? 200 : 401) << name_of(r);
    if (is_public) continue;
    EXPECT_EQ(status_of(head, alice_), 200) << name_of(r);
    EXPECT_EQ(who, "alice " + keys_.read().at(0).id);
    const bool lacks = r.scope == Scope::kTrain || r.scope == Scope::kSample;
    EXPECT_EQ(status_of(head, narrow), lacks ? 403 : 200) << name_of(r);
  }
  Head none;
  none.method = "POST";
  none.path = "/api/v1/none";
  EXPECT_EQ(status_of(none, alice_), 404);
  EXPECT_EQ(who, "alice " + keys_.read().at(0).id);  // for the log
  EXPECT_EQ(status_of(none, "tml-x"), 404);
  EXPECT_EQ(who, " ");
}

TEST_F(OwnersTest, WhatIsForeignIs404AndSaysNotThatItIsThere) {
  const Owned a = owned();
  const auto all = cases(a);
  const auto absent = cases({.session = "no",
                             .run = "no:train:0",
                             .sampler = "no",
                             .promise = "no",
                             .checkpoint = "tinker://no:train:0/weights/a",
                             .spare = "no"});
  const auto told = [&](const Case& one, const Owned& names) {
    Request r = one.request;
    r.headers["x-api-key"] = bob_;
    const Response response = answer(std::move(r));
    std::string body = response.body;
    for (const std::string& id :
         {names.checkpoint, names.promise, names.sampler, names.run, names.session, names.spare})
      if (const size_t at = body.find("'" + id + "'"); at != std::string::npos)
        body.replace(at, id.size() + 2, "X");
    return std::to_string(response.status) + " " + body;
  };
  for (const Route& r : routes()) {
    const Case& one = all.at(name_of(r));
    EXPECT_EQ(r.touches != kNothing, one.names) << name_of(r);
    if (!one.names) continue;
    const std::string foreign = told(one, a);
    EXPECT_EQ(foreign.substr(0, 3), "404") << name_of(r) << ": " << foreign;
    EXPECT_EQ(foreign, told(absent.at(name_of(r)), {.session = "no",
                                                    .run = "no:train:0",
                                                    .sampler = "no",
                                                    .promise = "no",
                                                    .checkpoint = "tinker://no:train:0/weights/a",
                                                    .spare = "no"}))
        << name_of(r);
  }
}

// Else 401 and 404 above would say nothing.
TEST_F(OwnersTest, ItsOwnerIsAnswered) {
  const auto all = cases(owned());
  for (const Route& r : routes())
    EXPECT_EQ(status(all.at(name_of(r)).request, alice_), all.at(name_of(r)).status) << name_of(r);
}

TEST_F(OwnersTest, AnotherKeyOfTheTenantDoesAsWell) {
  const auto all = cases(owned());
  const std::string other = make("alice", {"train", "sample", "metrics"});
  for (const Route& r : routes())
    EXPECT_EQ(status(all.at(name_of(r)).request, other), all.at(name_of(r)).status) << name_of(r);
}

TEST_F(OwnersTest, AForeignCheckpointIs404InAnOwnSession) {
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

TEST_F(OwnersTest, AKeyDoesWhatItsScopesSay) {
  const auto all = cases(owned());
  const std::string trains = make("alice", {"train"}), samples = make("alice", {"sample"});
  const std::set<std::string> of_train = {"create_model", "forward_backward",
                                          "optim_step",   "save_weights_external",
                                          "save_weights", "save_weights_for_sampler",
                                          "load_weights"},
                              of_sample = {"create_sampling_session", "asample", "completions"};
  for (const Route& r : routes()) {
    const std::string name(r.path.substr(r.path.rfind('/') + 1));
    const Request& request = all.at(name_of(r)).request;
    const bool measures = name == "metrics";
    EXPECT_EQ(status(request, samples),
              measures || of_train.contains(name) ? 403 : all.at(name_of(r)).status)
        << name;
    EXPECT_EQ(status(request, trains),
              measures || of_sample.contains(name) ? 403 : all.at(name_of(r)).status)
        << name;
  }
}

// The same names as in docs/operating.md, "Audit log".
TEST_F(OwnersTest, TheAuditLogHasALineOfEachRequestThatLastsAndOfNoOther) {
  const auto all = cases(owned());
  const std::set<std::string> audited = {"create_model", "save_weights", "save_weights_for_sampler",
                                         "load_weights", "create_sampling_session"};
  const auto lines = [&] {
    std::istringstream in(read_text(dir_ / "audit.jsonl"));
    std::vector<std::string> out;
    for (std::string line; std::getline(in, line);) out.push_back(line);
    return out;
  };
  size_t num_audited = 0;
  for (const Route& r : routes()) {
    const std::string name(r.path.substr(r.path.rfind('/') + 1));
    const size_t before = lines().size();
    EXPECT_EQ(status(all.at(name_of(r)).request, alice_), all.at(name_of(r)).status) << name_of(r);
    const auto after = lines();
    EXPECT_EQ(after.size(), before + (audited.contains(name) ? 1 : 0)) << name_of(r);
    if (!audited.contains(name)) continue;
    ++num_audited;
    const JsonObject line = parse_json(after.back(), "line").as_object();
    EXPECT_EQ(line.at("action"), Json(name));
    EXPECT_EQ(line.at("tenant"), "alice");
  }
  EXPECT_EQ(num_audited, audited.size());
}

TEST_F(OwnersTest, ARequestThatNamesNothingIs422AndTheFieldIsNamed) {
  const std::map<unsigned, std::string> fields = {{kSession, "session_id"},
                                                  {kRun, "model_id"},
                                                  {kSampler, "sampling_session_id"},
                                                  {kPromise, "request_id"},
                                                  {kTinkerPath, "tinker_path"}};
  for (const Route& r : routes()) {
    const unsigned first = r.touches & (~r.touches + 1);  // a checkpoint is the second
    if (r.touches == kNothing || r.path.find('{') != std::string_view::npos) continue;
    Request nothing = request(std::string(r.path), "{}", alice_);
    if (r.path.ends_with("/forward_backward")) {
      nothing.headers["content-type"] = "application/x-protobuf";
      nothing.body.clear();
    }
    const Response refused = answer(nothing);
    EXPECT_EQ(refused.status, 422) << name_of(r);
    EXPECT_EQ(text(refused, "detail"), "server: " + fields.at(first) + " is missing");
  }
}

TEST_F(OwnersTest, ARevokedKeyMayFetchWhatBeganBeforeAndNothingElse) {
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

TEST_F(OwnersTest, APollThatIsHeldWhenItsKeyEndsIsAnsweredAndTheNextIsNot) {
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
  EXPECT_TRUE(loop_->run_until([&] { return held->has_value(); }));
  EXPECT_EQ((*held)->status, 200) << (*held)->body;
  EXPECT_EQ(answer(request("/api/v1/retrieve_future", poll, key)).status, 401);
}

TEST_F(OwnersTest, WhatIsRefusedForItsKeyIsNotWrittenDown) {
  go_on();
  const Owned a = owned();
  const auto size = [&] {
    uintmax_t out = 0;
    for (const auto& part : std::filesystem::directory_iterator(dir_ / "journal"))
      out += part.file_size();
    return out;
  };
  bool written = false;  // what came before, of which a result's reading is not waited for
  services_->history.append(Read{.request_id = "none"},
                            [&](uint64_t, const auto&) { written = true; });
  ASSERT_TRUE(loop_->run_until([&] { return written; }));
  const uintmax_t before = size();
  const std::string samples = make("alice", {"sample"});
  const Request request = cases(a).at("POST /api/v1/create_model").request;
  for (const std::string& key : {std::string(), std::string("tml-x"), expired_, revoked_})
    EXPECT_EQ(status(request, key), 401);
  EXPECT_EQ(status(request, samples), 403);
  EXPECT_EQ(size(), before);
  EXPECT_EQ(status(request, alice_), 200);
  EXPECT_GT(size(), before);
}

TEST_F(OwnersTest, OwnersAreTheSameAfterAReplay) {
  go_on();
  const Owned a = owned();
  open();
  backend_->facts.directory = model_.directory().string();
  ask_for_keys(keys_, {.now = [this] { return now_; }});
  go_on();
  const auto all = cases(a);
  for (const Route& r : routes()) {
    const Case& one = all.at(name_of(r));
    EXPECT_EQ(status(one.request, bob_), one.names ? 404 : one.status) << name_of(r);
    EXPECT_EQ(status(one.request, alice_), one.status) << name_of(r);
  }
}

TEST_F(OwnersTest, AProtobufBodyIsNotReadBeforeItsRunIsTheCallers) {
  const Owned a = owned();
  std::string bytes = {'\x0a', static_cast<char>(a.run.size())};
  bytes += a.run + "\x10\x01\x1a\x02\x0a\x05";  // a datum that ends too early
  Request r = request("/api/v1/forward_backward", bytes, bob_);
  r.headers["content-type"] = "application/x-protobuf";
  EXPECT_EQ(answer(r).status, 404);
  r.headers["x-api-key"] = alice_;
  EXPECT_EQ(answer(r).status, 422);
}

TEST_F(OwnersTest, TheRunThatIsCheckedIsTheOneThatIsTrained) {
  const Owned a = owned();
  const std::string b_session =
      text(post("/api/v1/create_session", JsonObject{}, bob_), "session_id");
  const std::string b =
      text(result(post("/api/v1/create_model", model(b_session), bob_), bob_), "model_id");
  std::string bytes = forward_backward_bytes(b, 1, "cross_entropy") + '\x0a' +
                      static_cast<char>(a.run.size()) + a.run;
  Request r = request("/api/v1/forward_backward", bytes, bob_);
  r.headers["content-type"] = "application/x-protobuf";
  EXPECT_EQ(answer(r).status, 404);  // of two model_ids the last counts
  bytes =
      forward_backward_bytes(a.run, 1, "cross_entropy") + '\x0a' + static_cast<char>(b.size()) + b;
  r.body = bytes;
  EXPECT_EQ(text(answer(r), "model_id"), b);
}

}  // namespace
}  // namespace twinkle::server
