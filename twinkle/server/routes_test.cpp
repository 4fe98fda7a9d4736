// What a request is answered before a handler sees it.
#include "twinkle/server/routes.h"

#include "twinkle/base/error_for_test.h"
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

TEST_F(RoutesTest, ABodyThatIsNotJsonIs422) {
  EXPECT_EQ(answer(request("/api/v1/create_session", "{\"tags\": [", "tml-a")).status, 422);
  EXPECT_EQ(answer(request("/api/v1/create_session", "[]", "tml-a")).status, 422);
}

}  // namespace
}  // namespace twinkle::server
