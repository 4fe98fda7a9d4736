// What a request is answered before a handler sees it.
#include "twinkle/server/routes.h"

#include "twinkle/base/error_for_test.h"
#include "twinkle/server/bodies/body_room.h"
#include "twinkle/server/service_for_test.h"

namespace twinkle::server {
namespace {

class RoutesTest : public ServiceTest {
 protected:
  Response get(const std::string& path) {
    Request r = request(path, "", "tml-a");
    r.method = "GET";
    return answer(r);
  }
};

TEST_F(RoutesTest, APathThatIsNotThereIs404AndNamesItself) {
  const Response answer = post("/api/v1/create_sesion", JsonObject{});
  EXPECT_EQ(answer.status, 404);
  EXPECT_NE(answer.body.find("POST /api/v1/create_sesion"), std::string::npos) << answer.body;
}

TEST_F(RoutesTest, AMethodIsPartOfTheRoute) {
  EXPECT_EQ(get("/api/v1/healthz").status, 200);
  EXPECT_EQ(post("/api/v1/healthz", JsonObject{}).status, 404);
  EXPECT_EQ(get("/api/v1/healthz/more").status, 404);
}

TEST_F(RoutesTest, WhatIsNotJournalledIsNotDoneAgain) {
  const Command poll{
      .method = "POST", .path = "/api/v1/retrieve_future", .body = R"({"request_id":"a"})"};
  EXPECT_EQ(
      error_of([&] { replay(1, poll, *services_); }),
      "server: the journal holds a request to /api/v1/retrieve_future, which changes nothing; "
      "it is damaged");
}

TEST_F(RoutesTest, APollThatFailsIs429SoThatItsClientPauses) {
  for (const int status : {500, 502, 503}) {
    const std::string id = "a:" + std::to_string(status);
    services_->promises.open(id, services_->access.whose("tml-a").owner);
    services_->promises.settle(id, {.status = status, .body = "why"});
    const Response told = post("/api/v1/retrieve_future", {{"request_id", id}});
    EXPECT_EQ(told.status, 429) << status;
    EXPECT_EQ(told.body, "why");
  }
  services_->promises.open("a:410", services_->access.whose("tml-a").owner);
  services_->promises.settle("a:410", {.status = 410});
  EXPECT_EQ(post("/api/v1/retrieve_future", {{"request_id", "a:410"}}).status, 410);
}

TEST_F(RoutesTest, AFailureThatQuotesWhatIsNoUtf8IsJson) {
  EXPECT_EQ(text(server::failure("no loss '\xff\xfe'", true), "error"), "no loss '\?\?'");
  EXPECT_EQ(text(server::failure("no loss 'é'", true), "error"), "no loss 'é'");
}

TEST_F(RoutesTest, ABodyThatIsNotJsonIs422) {
  EXPECT_EQ(answer(request("/api/v1/create_session", "{\"tags\": [", "tml-a")).status, 422);
  EXPECT_EQ(answer(request("/api/v1/create_session", "[]", "tml-a")).status, 422);
  Request zeros = request("/api/v1/create_session", std::string(100, '\0'), "tml-a");
  zeros.headers["content-type"] = "application/x-protobuf";
  EXPECT_EQ(text(answer(zeros), "detail"),
            "server: the Content-Type of the body is 'application/x-protobuf', "
            "/api/v1/create_session takes application/json alone");
}

TEST_F(RoutesTest, HowLongABodyMayBeDependsOnItsRouteAndKind) {
  BodyRoom room({}, *loop_);
  const auto most = [&](const char* method, const std::string& path, const std::string& type) {
    Head head{.method = method, .headers = {{"x-api-key", "tml-a"}, {"content-type", type}}};
    int64_t out = 0;
    admit(head, path, *services_, room, [&](const Admission& a) { out = a.max_body_bytes; });
    return out;
  };
  EXPECT_EQ(most("POST", "/api/v1/forward_backward", "application/x-protobuf"), 64 << 20);
  EXPECT_EQ(most("POST", "/api/v1/asample", "application/json"), 8 << 20);
  EXPECT_EQ(most("GET", "/api/v1/healthz", "application/x-protobuf"), 64 << 10);
  EXPECT_EQ(most("POST", "/api/v1/create_session", "application/json"), 64 << 10);
  EXPECT_EQ(most("POST", "/api/v1/create_session", "application/x-protobuf"), 64 << 10);
}

TEST_F(RoutesTest, WhatTakesNoBodyWaitsForNone) {
  BodyRoom room({}, *loop_);
  const auto told = [&](Head head, const std::string& path = "/healthz") {
    head.method = "GET";
    std::string out = "let in";
    admit(head, path, *services_, room, [&](const Admission& a) {
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

TEST_F(RoutesTest, APageOfAnotherSiteComesInWithAKeyOnly) {
  BodyRoom room({}, *loop_);
  const auto status = [&](const char* key) {
    const Head head{.method = "POST", .headers = {{"x-api-key", key}, {"host", "evil.example"}}};
    int out = 200;
    admit(head, "/api/v1/create_session", *services_, room, [&](const Admission& a) {
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

TEST_F(RoutesTest, ARefusalIsToldOfTheTenantWhoseKeyItWas) {
  const store::KeyFile keys(dir_.path());
  const auto made = keys.create({.tenant = "alice", .scopes = {"sample"}});
  const auto ended = keys.create({.tenant = "bob", .scopes = {"train"}, .expires = 1});
  ask_for_keys(keys);
  BodyRoom room({}, *loop_);
  const auto told = [&](const char* path, const std::string& key) {
    Head head{.method = "POST", .path = path, .headers = {{"x-api-key", key}}};
    std::string out;
    admit(head, path, *services_, room, [&](const Admission& a) {
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

TEST_F(RoutesTest, ALongRequestThatNamesNothingOfTheCallersIsNotWrittenDown) {
  go_on();
  const std::string mine = run();
  const int64_t before = services_->history.bytes();
  const auto sent = [&](const std::string& body) {
    Request r = request("/api/v1/forward_backward", body, "tml-a");
    r.headers["content-type"] = "application/x-protobuf";
    return answer(r).status;
  };
  const std::string much(100'000, '\0');
  EXPECT_EQ(sent(much), 422);
  EXPECT_EQ(sent(forward_backward_bytes("another", 1, "cross_entropy") + much), 404);
  EXPECT_EQ(services_->history.bytes(), before);
  EXPECT_EQ(sent(forward_backward_bytes(mine, 1, "cross_entropy") + much), 422);
  EXPECT_GT(services_->history.bytes(), before + std::ssize(much)) << "it uses its number up";
}

}  // namespace
}  // namespace twinkle::server
