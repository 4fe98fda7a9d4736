// What a request is answered before a handler sees it.
#include "twinkle/server/routes.h"

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

TEST_F(RoutesTest, ABodyThatIsNotJsonIs422) {
  EXPECT_EQ(answer(request("/api/v1/create_session", "{\"tags\": [", "tml-a")).status, 422);
  EXPECT_EQ(answer(request("/api/v1/create_session", "[]", "tml-a")).status, 422);
}

}  // namespace
}  // namespace twinkle::server
