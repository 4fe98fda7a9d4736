// What /metrics, /readyz and the audit log say of requests that were made.
#include "twinkle/server/metrics/metrics.h"

#include <fstream>
#include <map>
#include <regex>
#include <set>
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

TEST_F(MetricsTest, TheTimeOfARequestIsThatSinceItsHeadCame) {
  Request slow = request("/api/v1/create_session", "{}", "tml-a");
  slow.came -= std::chrono::minutes(2);
  EXPECT_EQ(answer(slow).status, 200);
  session();
  const std::string seconds = "twinkle_request_seconds", of = "{route=\"/api/v1/create_session\"";
  EXPECT_EQ(value(seconds + "_count" + of + "}"), "2");
  EXPECT_EQ(value(seconds + "_bucket" + of + ",le=\"60\"}"), "1");
  EXPECT_EQ(value(seconds + "_bucket" + of + ",le=\"300\"}"), "2");
  EXPECT_EQ(value(seconds + "_bucket" + of + ",le=\"+Inf\"}"), "2");
  EXPECT_GE(std::stod(value(seconds + "_sum" + of + "}")), 120);
}

TEST_F(MetricsTest, RoutesThatAreNoneAreOneNameHoweverManyAreAsked) {
  for (int i = 0; i < 50; ++i) {
    Request r = request("/no/such/path" + std::to_string(i), "", "");
    r.method = "GET" + std::to_string(i);
    EXPECT_EQ(answer(r).status, 404);
  }
  EXPECT_EQ(value("twinkle_request_seconds_count{route=\"none\"}"), "50");
  EXPECT_EQ(get("/metrics").body.find("such"), std::string::npos);
}

TEST_F(MetricsTest, TheProgramAndItsMemoryAreTold) {
  services_->metrics.build = {.version = "1.2", .id = "abc", .torch = "2.11.0"};
  EXPECT_EQ(value("twinkle_build_info{version=\"1.2\",build=\"abc\",torch=\"2.11.0\"}"), "1");
  std::ifstream status("/proc/self/status");
  int64_t kib = 0;
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmRSS:")) kib = std::stoll(line.substr(6));
  const double bytes = std::stod(value("process_resident_memory_bytes"));
  EXPECT_GT(bytes, 0.5 * 1024 * static_cast<double>(kib));
  EXPECT_LT(bytes, 2.0 * 1024 * static_cast<double>(kib));
}

TEST_F(MetricsTest, OperationsOfTheEngineAreCountedByTheirKind) {
  const std::string id = run();
  result(train(id, 1));
  result(step(id, 2));
  for (const std::string of : {"create", "forward_backward", "step"})
    for (const std::string name :
         {"twinkle_operation_waiting_seconds_count", "twinkle_operation_computing_seconds_count"})
      EXPECT_EQ(value(name + "{operation=\"" + of + "\"}"), "1") << name << of;
}

// Names of /metrics by their types.
std::map<std::string, std::string> metric_names_in(const std::string& text) {
  std::map<std::string, std::string> out;
  std::istringstream in(text);
  for (std::string line, word; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name, type;
    if (!line.starts_with("# TYPE") || !(words >> word >> word >> name >> type)) continue;
    EXPECT_TRUE(out.emplace(name, type).second) << name << " is there twice";
  }
  return out;
}

std::set<std::string> metrics_in(const std::string& text) {
  const std::regex name("(twinkle|process)_[a-z_]+");
  std::set<std::string> out;
  for (std::sregex_iterator at(text.begin(), text.end(), name), end; at != end; ++at)
    out.insert(at->str());
  return out;
}

TEST_F(MetricsTest, TheDocumentHasATableOfThem) {
  const std::string page = read_text("docs/operating.md");
  const size_t begin = page.find("| number | what it is |"), end = page.find("\n\n", begin);
  std::set<std::string> told;
  for (const auto& [name, type] : metric_names_in(get("/metrics").body)) told.insert(name);
  EXPECT_EQ(metrics_in(page.substr(begin, end - begin)), told);
}

TEST_F(MetricsTest, TheDashboardIsGrafanasAndAsksForNamesThatThereAre) {
  const auto names = metric_names_in(get("/metrics").body);
  const Json board = read_json("docs/grafana.json");
  EXPECT_FALSE(twinkle::get<std::string>(board, "title").empty());
  EXPECT_GE(twinkle::get<int64_t>(board, "schemaVersion"), 36) << "datasources by uid";
  const Json& variable = board.at("templating").at("list").as_array().at(0);
  EXPECT_EQ(variable.at("type"), "datasource");
  const Json source("${" + twinkle::get<std::string>(variable, "name") + "}");
  std::set<int64_t> ids;
  std::set<std::string> asked;
  for (const Json& panel : board.at("panels").as_array()) {
    EXPECT_TRUE(ids.insert(twinkle::get<int64_t>(panel, "id")).second) << panel;
    for (const char* text : {"title", "type"})
      EXPECT_FALSE(twinkle::get<std::string>(panel, text).empty()) << panel;
    const Json& place = panel.at("gridPos");
    EXPECT_LE(twinkle::get<int64_t>(place, "x") + twinkle::get<int64_t>(place, "w"), 24) << panel;
    EXPECT_GT(twinkle::get<int64_t>(place, "h"), 0) << panel;
    std::set<std::string> refs;
    for (const Json& target : panel.at("targets").as_array()) {
      EXPECT_TRUE(refs.insert(twinkle::get<std::string>(target, "refId")).second) << target;
      EXPECT_EQ(target.at("datasource").at("uid"), source) << target;
      for (const std::string& name : metrics_in(twinkle::get<std::string>(target, "expr"))) {
        const std::string of = std::regex_replace(name, std::regex("_(bucket|sum|count)$"), "");
        const bool is_histogram = names.contains(of) && names.at(of) == "histogram";
        EXPECT_TRUE(is_histogram ? name != of : names.contains(name)) << name;
        asked.insert(is_histogram ? of : name);
      }
    }
    EXPECT_FALSE(refs.empty()) << panel;
  }
  for (const auto& [name, type] : names)
    EXPECT_TRUE(asked.contains(name)) << name << " is in no panel";
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
