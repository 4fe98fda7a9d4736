// Answers to requests that no handler sees.
#include <array>
#include <stdexcept>

#include "twinkle/base/error.h"
#include "twinkle/serving/api/service_for_test.h"
#include "twinkle/serving/tinker/answers.h"

namespace twinkle::server {
namespace {

using RouterTest = ServiceTest;

TEST_F(RouterTest, APathThatIsNotThereIs404AndNamesItself) {
  const Response answer = post("/api/v1/create_sesion", JsonObject{});
  EXPECT_EQ(answer.status, 404);
  EXPECT_NE(answer.body.find("POST /api/v1/create_sesion"), std::string::npos) << answer.body;
}

TEST_F(RouterTest, AMethodIsPartOfTheRoute) {
  EXPECT_EQ(get("/api/v1/healthz").status, 200);
  EXPECT_EQ(post("/api/v1/healthz", JsonObject{}).status, 404);
  EXPECT_EQ(get("/api/v1/healthz/more").status, 404);
}

TEST_F(RouterTest, APollThatFailsIs429SoThatItsClientPauses) {
  static const auto fails = [](api::Call& call) -> Task<Response> {
    if (call.request.query == "busy") fail(Code::kBusy, "server: come again");
    if (call.request.query == "bug") throw std::logic_error("a secret");
    co_return Response{.status = 410, .body = "gone"};
  };
  static const std::array kRoutes = {
      api::Route{"GET", "/api/v1/retrieve_future", fails, Scope::kAny, api::Form::kNone},
      api::Route{"GET", "/other", fails, Scope::kAny, api::Form::kNone}};
  router_->add(kRoutes);
  const std::string poll = "/api/v1/retrieve_future?", other = "/other?";
  EXPECT_EQ(get(other + "busy").status, 503);
  EXPECT_EQ(get(other + "bug").status, 500);
  EXPECT_EQ(get(other + "bug").body.find("secret"), std::string::npos);
  for (const char* how : {"busy", "bug"}) {
    const Response told = get(poll + how);
    EXPECT_EQ(told.status, 429) << how;
    EXPECT_EQ(told.body, get(other + how).body);
  }
  EXPECT_EQ(get(poll + "gone").status, 410);
}

TEST_F(RouterTest, AFailureThatQuotesWhatIsNoUtf8IsJson) {
  EXPECT_EQ(text(tinker::failure("no loss '\xff\xfe'", true), "error"), "no loss '\?\?'");
  EXPECT_EQ(text(tinker::failure("no loss 'é'", true), "error"), "no loss 'é'");
}

TEST_F(RouterTest, ABodyThatIsNotJsonIs422) {
  EXPECT_EQ(answer(request("/api/v1/create_session", "{\"tags\": [", "tml-a")).status, 422);
  EXPECT_EQ(answer(request("/api/v1/create_session", "[]", "tml-a")).status, 422);
  Request zeros = request("/api/v1/create_session", std::string(100, '\0'), "tml-a");
  zeros.headers["content-type"] = "application/x-protobuf";
  EXPECT_EQ(text(answer(zeros), "detail"),
            "server: the Content-Type of the body is 'application/x-protobuf', "
            "/api/v1/create_session takes application/json alone");
}

TEST_F(RouterTest, HowLongABodyMayBeDependsOnItsRouteAndKind) {
  const auto most = [&](const char* method, const std::string& path, const std::string& type) {
    Head head{.method = method, .headers = {{"x-api-key", "tml-a"}, {"content-type", type}}};
    int64_t out = 0;
    router_->admit(head, path, [&](const Admission& a) { out = a.max_body_bytes; });
    return out;
  };
  EXPECT_EQ(most("POST", "/api/v1/forward_backward", "application/x-protobuf"), 64 << 20);
  EXPECT_EQ(most("POST", "/api/v1/asample", "application/json"), 8 << 20);
  EXPECT_EQ(most("GET", "/api/v1/healthz", "application/x-protobuf"), 64 << 10);
  EXPECT_EQ(most("POST", "/api/v1/create_session", "application/json"), 64 << 10);
  EXPECT_EQ(most("POST", "/api/v1/create_session", "application/x-protobuf"), 64 << 10);
}

TEST_F(RouterTest, WhatTakesNoBodyWaitsForNone) {
  const auto told = [&](Head head, const std::string& path = "/healthz") {
    head.method = "GET";
    std::string out = "let in";
    router_->admit(head, path, [&](const Admission& a) {
      if (a.max_body_bytes < 0) out = text(a.refused, "detail");
    });
    return out;
  };
  EXPECT_EQ(told({}), "let in");
  EXPECT_EQ(told({.content_length = 0}), "let in");
  EXPECT_EQ(told({.content_length = 1}), "server: GET /healthz takes no body; leave it out");
  EXPECT_NE(told({.headers = {{"transfer-encoding", "chunked"}}}), "let in");
  const store::KeyFile keys(dir_.path());
  keys.create({.tenant = "alice", .scopes = {"train"}});
  ask_for_keys(keys);
  EXPECT_EQ(told({.content_length = 1}, "/metrics"),
            "server: GET /metrics takes no body; leave it out")
      << "before a key is asked for";
}

TEST_F(RouterTest, APageOfAnotherSiteComesInWithAKeyOnly) {
  const auto status = [&](const char* key) {
    const Head head{.method = "POST", .headers = {{"x-api-key", key}, {"host", "evil.example"}}};
    int out = 200;
    router_->admit(head, "/api/v1/create_session", [&](const Admission& a) {
      if (a.max_body_bytes < 0) out = a.refused.status;
    });
    return out;
  };
  EXPECT_EQ(status("tml-a"), 403);
  const store::KeyFile keys(dir_.path());
  const auto made = keys.create({.tenant = "alice", .scopes = {"train"}});
  ask_for_keys(keys);
  EXPECT_EQ(status(made.text.c_str()), 200);
  EXPECT_EQ(status("tml-a"), 401);
}

TEST_F(RouterTest, ARefusalIsToldOfTheTenantWhoseKeyItWas) {
  const store::KeyFile keys(dir_.path());
  const auto made = keys.create({.tenant = "alice", .scopes = {"sample"}});
  const auto ended = keys.create({.tenant = "bob", .scopes = {"train"}, .expires = 1});
  ask_for_keys(keys);
  const auto told = [&](const char* path, const std::string& key) {
    Head head{.method = "POST", .path = path, .headers = {{"x-api-key", key}}};
    std::string out;
    router_->admit(head, path, [&](const Admission& a) {
      EXPECT_LT(a.max_body_bytes, 0);
      out = std::to_string(a.refused.status) + " " + a.tenant + " " + a.key_id;
    });
    return out;
  };
  EXPECT_EQ(told("/api/v1/optim_step", made.text), "403 alice " + made.key.id);
  EXPECT_EQ(told("/api/v1/nowhere", made.text), "404 alice " + made.key.id);
  EXPECT_EQ(told("/api/v1/optim_step", ended.text), "401 bob " + ended.key.id);
  EXPECT_EQ(told("/api/v1/optim_step", "tml-unknown"), "401  ");
}

TEST_F(RouterTest, ALongRequestThatNamesNothingOfTheCallersIsNotWrittenDown) {
  const std::string mine = run();
  const int64_t before = core_->log().bytes();
  const auto sent = [&](const std::string& body) {
    Request r = request("/api/v1/forward_backward", body, "tml-a");
    r.headers["content-type"] = "application/x-protobuf";
    return answer(r);
  };
  const std::string much(100'000, '\0');
  EXPECT_EQ(sent(much).status, 422);
  EXPECT_EQ(sent(forward_backward_bytes("another", 1, "cross_entropy") + much).status, 404);
  EXPECT_EQ(core_->log().bytes(), before);
  failure(sent(forward_backward_bytes(mine, 1, "cross_entropy") + much));
  EXPECT_GT(core_->log().bytes(), before) << "it uses its number up, ...";
  EXPECT_LT(core_->log().bytes(), before + 1000) << "... and is not written down itself";
}

}  // namespace
}  // namespace twinkle::server
