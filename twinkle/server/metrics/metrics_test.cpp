// What /metrics, /readyz and the audit log say of requests that were made.
#include "twinkle/server/metrics/metrics.h"

#include <sstream>

#include "twinkle/server/service_for_test.h"

namespace twinkle::server {
namespace {

class MetricsTest : public ServiceTest {
 protected:
  Response get(const std::string& path, const std::string& key = "tml-a") {
    Request r = request(path, "", key);
    r.method = "GET";
    return answer(r);
  }
  // The value of a line of /metrics, or "none".
  std::string value(const std::string& name) {
    std::istringstream in(get("/metrics").body);
    for (std::string line; std::getline(in, line);)
      if (line.starts_with(name + " ")) return line.substr(name.size() + 1);
    return "none";
  }
};

TEST_F(MetricsTest, RequestsAreCountedByRouteAndStatus) {
  const std::string s = session();
  session();
  post("/api/v1/session_heartbeat", {{"session_id", s}});
  post("/api/v1/session_heartbeat", {{"session_id", "none"}});
  get("/no/such/path");
  const std::string of = "twinkle_requests_total{route=\"";
  EXPECT_EQ(value(of + "/api/v1/create_session\",status=\"200\"}"), "2");
  EXPECT_EQ(value(of + "/api/v1/session_heartbeat\",status=\"200\"}"), "1");
  EXPECT_EQ(value(of + "/api/v1/session_heartbeat\",status=\"404\"}"), "1");
  EXPECT_EQ(value(of + "none\",status=\"404\"}"), "1");
}

TEST_F(MetricsTest, WhatRunsAndWhoWaitsIsTold) {
  const std::string id = run();
  EXPECT_EQ(value("twinkle_promises_open"), "0");
  std::atomic<bool> go = false;
  executor_->on_batch = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const Response ack = train(id, 1);
  const auto poll =
      send(request("/api/v1/retrieve_future",
                   boost::json::serialize(JsonObject{{"request_id", id + ":1"}}), "tml-a"));
  EXPECT_EQ(value("twinkle_promises_open"), "1");
  EXPECT_EQ(value("twinkle_polls_held"), "1");
  EXPECT_EQ(value("twinkle_engine_operations"), "1");
  go = true;
  EXPECT_EQ(result(ack).status, 200);
  EXPECT_EQ(value("twinkle_promises_open"), "0");
  EXPECT_EQ(value("twinkle_polls_held"), "0");
  EXPECT_EQ(value("twinkle_engine_operations"), "0");
  EXPECT_EQ(value("twinkle_training_tokens_total"), "3");
  EXPECT_EQ(value("twinkle_prefix_tokens_total"), "7");
  EXPECT_EQ(value("twinkle_journal_refused"), "0");
}

TEST_F(MetricsTest, HowManyRunsAreParkedIsTold) {
  backend_->parked = {.num_parked = 3, .num_failures = 2};
  EXPECT_EQ(value("twinkle_runs_parked"), "3");
  EXPECT_EQ(value("twinkle_parking_failures_total"), "2");
}

TEST_F(MetricsTest, AKeyOfMetricsReadsThemAsABearerToo) {
  const store::KeyFile file(dir_.path());
  const std::string trains = file.create({.tenant = "a", .scopes = {"train", "sample"}}).text;
  const std::string reads = file.create({.tenant = "b", .scopes = {"metrics"}}).text;
  ask_for_keys(file);
  EXPECT_EQ(get("/metrics", trains).status, 403);
  EXPECT_EQ(get("/metrics", reads).status, 200);
  Request r = request("/metrics", "", "");
  r.method = "GET";
  r.headers["authorization"] = "Bearer " + reads;
  EXPECT_EQ(answer(r).status, 200);
  r.headers["authorization"] = "Bearer " + reads.substr(1);
  EXPECT_EQ(answer(r).status, 401);
}

TEST_F(MetricsTest, ItIsReadyUnlessItsKeysCannotBeRead) {
  const store::KeyFile file(dir_.path());
  const std::string key = file.create({.tenant = "a", .scopes = {"train"}}).text;
  ask_for_keys(file);
  EXPECT_EQ(get("/readyz", "").status, 200);
  write_text(file.path(), "{");
  see_keys();
  EXPECT_EQ(post("/api/v1/create_session", JsonObject{}, key).status, 503);
  EXPECT_EQ(post("/api/v1/retrieve_future", {{"request_id", "r"}}, key).status, 429);
  const Response later = get("/readyz", "");
  EXPECT_EQ(later.status, 503);
  EXPECT_EQ(later.headers, (std::vector{std::pair<std::string, std::string>("Retry-After", "1")}));
  EXPECT_EQ(get("/healthz", "").status, 200);
}

TEST_F(MetricsTest, TheAuditLogSaysWhoAskedForWhatLasts) {
  const store::KeyFile file(dir_.path());
  const auto [text, key] = file.create({.tenant = "alice", .scopes = {"train"}});
  ask_for_keys(file);
  const std::string id = run(text);
  post("/api/v1/save_weights",
       {{"model_id", id}, {"seq_id", 1}, {"path", std::string(254, 'n') + "\u00e9\u00e9"}}, text);
  std::istringstream in(read_text(dir_ / "audit.jsonl"));
  std::vector<JsonObject> lines;
  for (std::string line; std::getline(in, line);)
    lines.push_back(parse_json(line, "line").as_object());
  ASSERT_EQ(lines.size(), 2u);
  for (const JsonObject& line : lines) {
    EXPECT_EQ(line.at("tenant"), "alice");
    EXPECT_EQ(line.at("key"), Json(key.id));
  }
  EXPECT_EQ(lines[0].at("action"), "create_model");
  EXPECT_EQ(lines[0].at("base_model"), "null");
  EXPECT_EQ(lines[1].at("action"), "save_weights");
  EXPECT_EQ(lines[1].at("model_id"), Json(id));
  EXPECT_EQ(lines[1].at("path"), Json(std::string(254, 'n')));
}

TEST_F(MetricsTest, WhatCannotBeWrittenIntoTheAuditLogIsNotDone) {
  const std::string s = session();
  std::filesystem::create_directory(dir_ / "audit.jsonl");
  EXPECT_EQ(post("/api/v1/create_model", model(s)).status, 503);
  std::filesystem::remove(dir_ / "audit.jsonl");
  EXPECT_EQ(post("/api/v1/get_info", {{"model_id", s + ":train:0"}}).status, 404);
  EXPECT_EQ(post("/api/v1/create_model", model(s)).status, 200);
}

}  // namespace
}  // namespace twinkle::server
