// Walks all routes: what each answers to callers without rights. A route without a case here fails,
// and so does a case without a route.
#include <set>
#include <sstream>

#include "twinkle/base/file.h"
#include "twinkle/serving/api/keys_for_test.h"

namespace twinkle::server {
namespace {

class OwnersTest : public KeysTest {
 protected:
  static std::vector<api::Route> all_routes() {
    std::vector<api::Route> out;
    for (const auto routes : {api::operator_routes(), tinker::routes()})
      out.insert(out.end(), routes.begin(), routes.end());
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
    for (const char* list : {"sessions", "training_runs", "checkpoints"})
      add("GET " + v1 + list, nothing, false);
    add("GET " + v1 + "sessions/{session_id}", nothing, true, v1 + "sessions/" + a.session);
    add("POST " + v1 + "create_model", model(a.session));
    add("POST " + v1 + "get_info", {{"model_id", a.run}});
    add("GET " + v1 + "training_runs/{model_id}", nothing, true, v1 + "training_runs/" + a.run);
    const std::string run = v1 + "training_runs/{model_id}/checkpoints";
    const std::string own = v1 + "training_runs/" + a.run + "/checkpoints";
    const auto add_checkpoint = [&](const std::string& verb, const std::string& name,
                                    const std::string& more) {
      add(verb + " " + run + "/{kind}/{name}" + more, nothing, true,
          own + "/weights/" + name + more);
    };
    add("GET " + run, nothing, true, own);
    add_checkpoint("DELETE", a.deleted, "");
    add_checkpoint("POST", a.kept, "/publish");
    add_checkpoint("DELETE", a.published, "/publish");
    add_checkpoint("PUT", a.kept, "/ttl");
    add("POST " + v1 + "training_runs/{model_id}/finish", nothing, true,
        v1 + "training_runs/" + a.finished_run + "/finish");
    add("DELETE " + v1 + "training_runs/{model_id}", nothing, true,
        v1 + "training_runs/" + a.deleted_run);
    add("POST " + v1 + "weights_info", {{"tinker_path", a.checkpoint}});
    add("POST " + v1 + "forward_backward", nothing);
    out["POST " + v1 + "forward_backward"].request.body =
        forward_backward_bytes(a.run, 5, "cross_entropy");
    out["POST " + v1 + "forward_backward"].request.headers["content-type"] =
        "application/x-protobuf";
    add("POST " + v1 + "optim_step",
        {{"model_id", a.run}, {"seq_id", 6}, {"adam_params", {{"learning_rate", 0.1}}}});
    add("POST " + v1 + "save_weights", {{"model_id", a.run}, {"seq_id", 7}, {"path", "b"}});
    add("POST " + v1 + "save_weights_for_sampler", {{"model_id", a.run}, {"seq_id", 8}});
    add("POST " + v1 + "save_weights_external", {{"model_id", a.run}, {"seq_id", 9}});
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
    add("POST " + v1 + "retrieve_future", {{"request_id", a.future}});
    return out;
  }
  static std::string name_of(const api::Route& r) {
    return std::string(r.verb) + " " + std::string(r.path);
  }
  // "POST optim_step"
  static std::string short_name(const api::Route& r) {
    constexpr std::string_view kPrefix = "/api/v1/";
    const bool has = r.path.starts_with(kPrefix);
    return std::string(r.verb) + " " + std::string(r.path.substr(has ? kPrefix.size() : 0));
  }
};

// Requests that need the scope train, by short_name.
const std::set<std::string> kOfTrain = {
    "POST create_model",
    "POST forward_backward",
    "POST optim_step",
    "POST save_weights",
    "POST save_weights_for_sampler",
    "POST save_weights_external",
    "POST load_weights",
    "DELETE training_runs/{model_id}",
    "POST training_runs/{model_id}/finish",
    "DELETE training_runs/{model_id}/checkpoints/{kind}/{name}",
    "POST training_runs/{model_id}/checkpoints/{kind}/{name}/publish",
    "DELETE training_runs/{model_id}/checkpoints/{kind}/{name}/publish",
    "PUT training_runs/{model_id}/checkpoints/{kind}/{name}/ttl"};

TEST_F(OwnersTest, EveryRouteHasACaseAndEveryCaseARoute) {
  const auto all = cases({});
  std::set<std::string> names;
  for (const api::Route& r : all_routes()) {
    EXPECT_TRUE(all.contains(name_of(r))) << name_of(r) << " has no case in owners_test.cpp";
    names.insert(name_of(r));
  }
  for (const auto& [name, one] : all) EXPECT_TRUE(names.contains(name)) << name;
}

TEST_F(OwnersTest, NoKeyAnUnknownOneAnExpiredOneAndARevokedOneAre401) {
  const auto all = cases(owned());
  for (const api::Route& r : all_routes()) {
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
  std::string who;
  const auto status_of = [&](Head head, const std::string& key) {
    if (head.method == "POST") head.content_length = 1 << 20;
    head.headers["x-api-key"] = key;
    int out = 0;
    router_->admit(head, head.path, [&](const Admission& admission) {
      out = admission.max_body_bytes < 0 ? admission.refused.status : 200;
      who = admission.tenant + " " + admission.key_id;
    });
    return out;
  };
  const auto all = cases(owned());
  const std::string narrow = make("alice", {"metrics"});
  for (const api::Route& r : all_routes()) {
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
  const Owned none{.session = "no",
                   .run = "no:train:0",
                   .sampler = "no",
                   .future = "no",
                   .checkpoint = "tinker://no:train:0/weights/a",
                   .spare = "no",
                   .finished_run = "no",
                   .deleted_run = "no",
                   .kept = "no",
                   .deleted = "no",
                   .published = "no"};
  const auto absent = cases(none);
  const auto told = [&](const Case& one, const Owned& names) {
    Request r = one.request;
    r.headers["x-api-key"] = bob_;
    const Response response = answer(std::move(r));
    std::string body = response.body;
    for (const std::string& id :
         {names.checkpoint, names.future, names.sampler, names.run, names.session, names.spare,
          names.finished_run, names.deleted_run, names.kept, names.deleted, names.published})
      if (const size_t at = body.find("'" + id + "'"); at != std::string::npos)
        body.replace(at, id.size() + 2, "X");
    return std::to_string(response.status) + " " + body;
  };
  for (const api::Route& r : all_routes()) {
    const Case& one = all.at(name_of(r));
    if (!one.names) continue;
    const std::string foreign = told(one, a);
    EXPECT_EQ(foreign.substr(0, 3), "404") << name_of(r) << ": " << foreign;
    EXPECT_EQ(foreign, told(absent.at(name_of(r)), none)) << name_of(r);
  }
}

// Else 401 and 404 above would say nothing.
TEST_F(OwnersTest, ItsOwnerIsAnswered) {
  const auto all = cases(owned());
  for (const api::Route& r : all_routes())
    EXPECT_EQ(status(all.at(name_of(r)).request, alice_), all.at(name_of(r)).status) << name_of(r);
}

TEST_F(OwnersTest, AnotherKeyOfTheTenantDoesAsWell) {
  const auto all = cases(owned());
  const std::string other = make("alice", {"train", "sample", "metrics"});
  for (const api::Route& r : all_routes())
    EXPECT_EQ(status(all.at(name_of(r)).request, other), all.at(name_of(r)).status) << name_of(r);
}

TEST_F(OwnersTest, AKeyDoesWhatItsScopesSay) {
  const auto all = cases(owned());
  const std::string trains = make("alice", {"train"}), samples = make("alice", {"sample"});
  const std::set<std::string> of_sample = {"POST create_sampling_session", "POST asample"};
  for (const api::Route& r : all_routes()) {
    const Case& one = all.at(name_of(r));
    const bool measures = r.path == "/metrics" || r.path == "/api/v1/usage";
    const bool trains_it = kOfTrain.contains(short_name(r));
    EXPECT_EQ(status(one.request, samples), measures || trains_it ? 403 : one.status) << name_of(r);
    EXPECT_EQ(status(one.request, trains),
              measures || of_sample.contains(short_name(r)) ? 403 : one.status)
        << name_of(r);
  }
}

// The same names as in docs/operating.md, "Audit log".
TEST_F(OwnersTest, TheAuditLogHasALineOfEachRequestThatLastsAndOfNoOther) {
  const auto all = cases(owned());
  std::set<std::string> audited = kOfTrain;
  audited.insert("POST create_sampling_session");
  for (const char* often : {"forward_backward", "optim_step", "save_weights_external"})
    audited.erase(std::string("POST ") + often);
  const auto lines = [&] {
    std::istringstream in(read_text(dir_ / "audit.jsonl"));
    std::vector<std::string> out;
    for (std::string line; std::getline(in, line);) out.push_back(line);
    return out;
  };
  size_t num_audited = 0;
  for (const api::Route& r : all_routes()) {
    const std::string name = short_name(r);
    const size_t before = lines().size();
    EXPECT_EQ(status(all.at(name_of(r)).request, alice_), all.at(name_of(r)).status) << name_of(r);
    const auto after = lines();
    EXPECT_EQ(after.size(), before + (audited.contains(name) ? 1 : 0)) << name_of(r);
    if (!audited.contains(name)) continue;
    ++num_audited;
    const JsonObject line = parse_json(after.back(), "line").as_object();
    const Request& asked = all.at(name_of(r)).request;
    const bool is_in_path = r.path.find('{') != std::string_view::npos;
    EXPECT_EQ(line.at("action"),
              Json(is_in_path ? asked.method + " " + asked.path : name.substr(name.find(' ') + 1)));
    EXPECT_EQ(line.at("tenant"), "alice");
  }
  EXPECT_EQ(num_audited, audited.size());
}

TEST_F(OwnersTest, ARequestThatNamesNothingIs422AndTheFieldIsNamed) {
  const std::map<std::string, std::string> fields = {{"session_heartbeat", "session_id"},
                                                     {"create_model", "session_id"},
                                                     {"create_sampling_session", "session_id"},
                                                     {"get_info", "model_id"},
                                                     {"forward_backward", "model_id"},
                                                     {"optim_step", "model_id"},
                                                     {"save_weights", "model_id"},
                                                     {"save_weights_for_sampler", "model_id"},
                                                     {"save_weights_external", "model_id"},
                                                     {"load_weights", "path"},
                                                     {"weights_info", "tinker_path"},
                                                     {"asample", "sampling_session_id"},
                                                     {"retrieve_future", "request_id"}};
  size_t num_seen = 0;
  const auto all = cases({});
  for (const api::Route& r : all_routes()) {
    if (!all.at(name_of(r)).names || r.path.find('{') != std::string_view::npos) continue;
    Request nothing = request(std::string(r.path), "{}", alice_);
    if (r.form == api::Form::kProtobuf) {
      nothing.headers["content-type"] = "application/x-protobuf";
      nothing.body.clear();
    }
    const Response refused = answer(nothing);
    EXPECT_EQ(refused.status, 422) << name_of(r);
    const std::string name(r.path.substr(r.path.rfind('/') + 1));
    EXPECT_EQ(text(refused, "detail"), "server: " + fields.at(name) + " is missing");
    ++num_seen;
  }
  EXPECT_EQ(num_seen, fields.size());
}

TEST_F(OwnersTest, OwnersAreTheSameAfterAReplay) {
  const Owned a = owned();
  restart();
  const auto all = cases(a);
  for (const api::Route& r : all_routes()) {
    const Case& one = all.at(name_of(r));
    EXPECT_EQ(status(one.request, bob_), one.names ? 404 : one.status) << name_of(r);
    EXPECT_EQ(status(one.request, alice_), one.status) << name_of(r);
  }
}

}  // namespace
}  // namespace twinkle::server
