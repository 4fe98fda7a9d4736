#include "twinkle/server/http/request_log.h"

#include <gtest/gtest.h>

namespace twinkle::server {
namespace {

// What a log that takes everything says of a request, behind the time.
std::string said(const std::string& method, const std::string& path, Told told) {
  Head head;
  head.method = method;
  head.path = path;
  head.id = "a-1";
  head.peer = "10.0.0.9";
  head.query = "key=secret";
  head.headers["x-api-key"] = "tml-secret";
  testing::internal::CaptureStderr();
  {
    Log log(Level::kDebug);
    told.time = std::chrono::microseconds(1250);
    note_request(log, head, told);
  }
  const std::string line = testing::internal::GetCapturedStderr();
  return line.substr(line.find(' ') + 1);
}

TEST(RequestLog, SaysWhatWasAskedAndHowItEndedAndNoSecrets) {
  EXPECT_EQ(said("POST", "/api/v1/create_model", {200}),
            "info POST /api/v1/create_model 200 1.2 ms id=a-1 peer=10.0.0.9\n");
  EXPECT_EQ(said("GET", "/" + std::string(5000, 'x'), {404}),
            "info GET /" + std::string(299, 'x') + " 404 1.2 ms id=a-1 peer=10.0.0.9\n");
  EXPECT_EQ(said(std::string(5000, 'G'), "/", {404}),
            "info " + std::string(300, 'G') + " / 404 1.2 ms id=a-1 peer=10.0.0.9\n");
}

TEST(RequestLog, SaysWhoAskedAndForWhichPromise) {
  EXPECT_EQ(said("POST", "/api/v1/asample",
                 {.status = 200,
                  .bytes = 345,
                  .tenant = "alice",
                  .key_id = "1f3a5c7e",
                  .promise = "s:sample:0:1"}),
            "info POST /api/v1/asample 200 1.2 ms id=a-1 peer=10.0.0.9 bytes=345 tenant=alice "
            "key=1f3a5c7e promise=s:sample:0:1\n");
  EXPECT_EQ(said("POST", "/api/v1/asample", {.status = 401, .reason = "unknown"}),
            "info POST /api/v1/asample 401 1.2 ms id=a-1 peer=10.0.0.9 reason=unknown\n");
}

TEST(RequestLog, TheLevelIsThatOfTheStatusAndWhatComesAllTheTimeIsDebug) {
  EXPECT_TRUE(said("POST", "/api/v1/retrieve_future", {408}).starts_with("debug "));
  EXPECT_TRUE(said("POST", "/api/v1/retrieve_future", {kGone}).starts_with("debug "));
  EXPECT_TRUE(said("POST", "/api/v1/session_heartbeat", {200}).starts_with("debug "));
  for (const char* path : {"/healthz", "/api/v1/healthz", "/readyz", "/metrics", "/root/readyz"})
    EXPECT_TRUE(said("GET", path, {200}).starts_with("debug ")) << path;
  EXPECT_TRUE(said("POST", "/api/v1/retrieve_future", {404}).starts_with("info "));
  EXPECT_TRUE(said("GET", "/metrics", {401}).starts_with("info "));
  EXPECT_TRUE(said("GET", "/readyz", {503}).starts_with("debug ")) << "it is asked all the time";
  for (const char* path : {"/hf/a/b/resolve/main/tokenizer.json", "/root/hf/api/models/a"})
    for (const int status : {200, 404})
      EXPECT_TRUE(said("GET", path, {status}).starts_with("debug ")) << path << status;
  EXPECT_TRUE(said("GET", "/hf/api/models/a", {401}).starts_with("info "));
  EXPECT_TRUE(said("GET", "/hf", {404}).starts_with("info ")) << "no path of the hub";
  EXPECT_TRUE(said("POST", "/api/v1/asample", {429}).starts_with("warning "));
  EXPECT_TRUE(said("POST", "/api/v1/optim_step", {503}).starts_with("warning "));
  EXPECT_TRUE(said("GET", "/api/v1/healthz", {500}).starts_with("error "));
}

}  // namespace
}  // namespace twinkle::server
