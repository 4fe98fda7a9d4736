// The SDK's RestClient: lists of sessions, runs and checkpoints, and what may be done to these.
#include "twinkle/serving/api/service_for_test.h"

namespace twinkle::server {
namespace {

class ListingTest : public ServiceTest {
 protected:
  JsonObject run_of(const std::string& id) { return parse(get("/api/v1/training_runs/" + id)); }
  JsonObject checkpoint_of(const std::string& path) {
    return parse(post("/api/v1/weights_info", {{"tinker_path", path}}));
  }
  Response save(const std::string& id, int64_t seq_id, const std::string& name,
                JsonObject more = {}) {
    more["model_id"] = id;
    more["seq_id"] = seq_id;
    more["path"] = name;
    return result(post("/api/v1/save_weights", more));
  }
  std::string saved(const std::string& id, int64_t seq_id) {
    return text(save(id, seq_id, "a"), "path");
  }
  Response put_ttl(const std::string& id, const std::string& name, const std::string& body) {
    Request r = request(path_of(id, name) + "/ttl", body, "tml-a");
    r.method = "PUT";
    return answer(r);
  }
  static std::string path_of(const std::string& id, const std::string& name) {
    return "/api/v1/training_runs/" + id + "/checkpoints/weights/" + name;
  }
  std::vector<std::string> names_of(const std::string& id) {
    std::vector<std::string> out;
    const JsonObject told = parse(get("/api/v1/training_runs/" + id + "/checkpoints"));
    for (const Json& one : told.at("checkpoints").as_array())
      out.emplace_back(one.at("checkpoint_id").as_string());
    return out;
  }
  // A command as if it had come at this time, and then the server had been killed.
  template <class Command>
  void commit_and_restart(Command command) {
    run_task(core_->commit(std::move(command)));
    restart();
  }
  void run_task(Task<> task) { core::CoreTest::run(std::move(task)); }
};

TEST_F(ListingTest, ACheckpointIsFoundByModelScopesSchemeAndToldByTinkers) {
  const std::string id = run();
  const std::string path = saved(id, 1);
  const std::string other = "twinkle://" + path.substr(std::string("tinker://").size());
  EXPECT_EQ(checkpoint_of(other), checkpoint_of(path));
  const Json load = {{"session_id", session()}, {"model_seq_id", 0}, {"path", other}};
  EXPECT_EQ(text(result(post("/api/v1/load_weights", load)), "path"), path);
  const Response none =
      post("/api/v1/weights_info", {{"tinker_path", "twinkle://" + id + "/weights/b"}});
  EXPECT_EQ(none.status, 404) << none.body;
}

TEST_F(ListingTest, ARunTellsWhenItsLastRequestWasAcceptedAlsoThroughAStart) {
  const std::string id = run();
  int64_t seq_id = 0;
  for (const int64_t time_ms : {4102444800999, 4102444700000})  // by a clock that was set back
    commit_and_restart(core::Fail{.run = id, .seq_id = ++seq_id, .time_ms = time_ms, .why = "x"});
  const JsonObject told{{"training_run_id", id},
                        {"base_model", "null"},
                        {"model_owner", core_->domain().run(id)->owner},
                        {"is_lora", true},
                        {"lora_rank", 8},
                        {"corrupted", false},
                        {"last_request_time", "2099-12-31T23:58:20Z"}};
  EXPECT_EQ(run_of(id), told);
  const std::string now(run_of(run()).at("last_request_time").as_string());
  EXPECT_TRUE("2026" < now && now < "2099") << now;
}

TEST_F(ListingTest, ACheckpointTellsItsGroupsOfModulesAlsoThroughAStartAndOfARunThatBeganWithIt) {
  const std::string id = run();
  const JsonObject told{{"base_model", "null"},  {"is_lora", true},
                        {"lora_rank", 8},        {"optimizer_config", {{"type", "adamw"}}},
                        {"train_attn", true},    {"train_mlp", true},
                        {"train_unembed", false}};
  const std::string path = saved(id, 1);
  EXPECT_EQ(checkpoint_of(path), told);
  const Response ack = post("/api/v1/load_weights",
                            {{"session_id", session()}, {"model_seq_id", 0}, {"path", path}});
  const std::string loaded = text(result(ack), "model_id");
  restart();
  EXPECT_EQ(checkpoint_of(path), told);
  EXPECT_EQ(checkpoint_of(saved(loaded, 1)), told);
  EXPECT_EQ(run_of(loaded).at("lora_rank").as_int64(), 8);
}

TEST_F(ListingTest, ARunThatIsLostIsTold) {
  const std::string id = run(), lost = run();
  CoreTest::run(core_->commit(core::Lost{lost, "its checkpoint was removed"}));
  EXPECT_TRUE(run_of(lost).at("corrupted").as_bool());
  EXPECT_FALSE(run_of(id).at("corrupted").as_bool());
}

TEST_F(ListingTest, ListsHaveTheCallersOwnNewestFirstInPages) {
  const std::string owner = service_.access.whose("tml-a").owner;
  for (int64_t i = 0; i < 5; ++i) {
    const std::string id = "run" + std::to_string(i);
    core::Run one{.id = id,
                  .owner = i == 1 ? "another" : owner,
                  .base_model = "null",
                  .session = "none",
                  .rank = 4,
                  .created_ms = 1000 * (1 + i % 3),
                  .last_ms = 1};
    run_task(core_->commit(core::CreateRun{.number = i, .run = std::move(one)}));
  }
  const auto page = [&](const std::string& query) {
    const JsonObject told = parse(get("/api/v1/training_runs" + query));
    std::string out;
    for (const Json& one : told.at("training_runs").as_array())
      out += std::string(one.at("training_run_id").as_string()).substr(3);
    EXPECT_EQ(told.at("cursor").at("total_count").as_int64(), 4) << query;
    return out;
  };
  EXPECT_EQ(page(""), "2403") << "of the same time in the order of their ids";
  EXPECT_EQ(page("?limit=2"), "24");
  EXPECT_EQ(page("?limit=3&offset=2&access_scope=owned"), "03");
  EXPECT_EQ(page("?offset=4"), "");
  EXPECT_EQ(page("?offset=4611686018427387903"), "");
  EXPECT_EQ(
      boost::json::serialize(parse(get("/api/v1/training_runs?offset=1&limit=2")).at("cursor")),
      R"({"offset":1,"limit":2,"total_count":4})");
  EXPECT_EQ(get("/api/v1/training_runs/run1").status, 404) << "another's";
  for (const char* list : {"training_runs", "checkpoints", "sessions"})
    for (const char* wrong : {"limit=0", "limit=-1", "limit=1001", "limit=", "limit=1e3",
                              "offset=-1", "offset=9223372036854775807", "offset=x", "offset=1 "}) {
      const Response told = get("/api/v1/" + std::string(list) + "?" + wrong);
      EXPECT_EQ(told.status, 422) << list << wrong;
      EXPECT_NE(told.body.find("it must be a number from"), std::string::npos) << told.body;
    }
}

TEST_F(ListingTest, SessionsAreListedWithTheirRunsAndSamplers) {
  const std::string s =
      text(post("/api/v1/create_session", {{"user_metadata", {{"by", "me"}}}}), "session_id");
  const std::string foreign = session("tml-b");
  const std::string id = text(result(post("/api/v1/create_model", model(s))), "model_id");
  const Json body = {{"session_id", s}, {"sampling_session_seq_id", 0}, {"base_model", "null"}};
  const std::string sampler =
      text(post("/api/v1/create_sampling_session", body), "sampling_session_id");
  const auto check = [&] {
    EXPECT_EQ(parse(get("/api/v1/sessions")).at("sessions"), Json(JsonArray{Json(s)}));
    EXPECT_EQ(parse(get("/api/v1/sessions/" + s)),
              (JsonObject{{"training_run_ids", JsonArray{Json(id)}},
                          {"sampler_ids", JsonArray{Json(sampler)}},
                          {"user_metadata", {{"by", "me"}}}}));
    EXPECT_EQ(get("/api/v1/sessions/" + foreign).status, 404);
    EXPECT_EQ(parse(get("/api/v1/samplers/" + sampler)),
              (JsonObject{{"sampler_id", sampler}, {"base_model", "null"}}));
  };
  check();
  restart();
  check();
}

TEST_F(ListingTest, CheckpointsAreListedWithWhatTheyWereSavedWith) {
  const std::string id = run();
  save(id, 1, "a", {{"user_metadata", {{"loss", "0.5"}}}, {"ttl_seconds", 3600}});
  result(
      post("/api/v1/save_weights_for_sampler", {{"model_id", id}, {"seq_id", 2}, {"path", "b"}}));
  for (int i = 0; i < 2; ++i) {
    const JsonObject all = parse(get("/api/v1/checkpoints"));
    EXPECT_EQ(all, parse(get("/api/v1/checkpoints?limit=100")));
    const JsonArray listed = all.at("checkpoints").as_array();
    ASSERT_EQ(listed.size(), 2U);
    const bool is_first = listed[0].at("checkpoint_id") == Json("weights/a");
    const JsonObject& a = listed[is_first ? 0 : 1].as_object();
    const JsonObject& b = listed[is_first ? 1 : 0].as_object();
    EXPECT_EQ(a.at("tinker_path"), Json("tinker://" + id + "/weights/a"));
    EXPECT_EQ(a.at("checkpoint_type"), Json("training"));
    EXPECT_EQ(a.at("user_metadata"), (Json{{"loss", "0.5"}}));
    EXPECT_EQ(a.at("size_bytes"),
              Json(core::bytes_below(dir_ / "checkpoints" / id / "weights" / "a")));
    EXPECT_GT(a.at("expires_at").as_string(), a.at("time").as_string());
    EXPECT_EQ(b.at("checkpoint_id"), Json("sampler_weights/b"));
    EXPECT_EQ(b.at("checkpoint_type"), Json("sampler"));
    EXPECT_FALSE(b.contains("expires_at"));
    EXPECT_FALSE(b.at("public").as_bool());
    EXPECT_EQ(run_of(id).at("last_checkpoint"), Json(a));
    EXPECT_EQ(run_of(id).at("last_sampler_checkpoint"), Json(b));
    restart();
  }
}

TEST_F(ListingTest, ADeletedCheckpointIsGoneWithItsFolderThroughAStartAndItsNameIsFree) {
  const std::string id = run(), path = saved(id, 1);
  save(id, 2, "b");
  const auto folder = dir_ / "checkpoints" / id / "weights" / "a";
  EXPECT_TRUE(std::filesystem::exists(folder));
  EXPECT_EQ(get(path_of(id, "a"), "tml-b", "DELETE").status, 404);
  EXPECT_EQ(get(path_of(id, "a"), "tml-a", "DELETE").status, 200);
  EXPECT_EQ(get(path_of(id, "a"), "tml-a", "DELETE").status, 404);
  EXPECT_TRUE(until([&] { return !std::filesystem::exists(folder); }));
  EXPECT_EQ(post("/api/v1/weights_info", {{"tinker_path", path}}).status, 404);
  restart();
  EXPECT_EQ(names_of(id), (std::vector<std::string>{"weights/b"}));
  EXPECT_EQ(text(save(id, 3, "a"), "path"), path);
  EXPECT_EQ(names_of(id).size(), 2U);
  for (const char* wrong : {"..", "none", "a/b", "%2e%2e", ".", ""})
    EXPECT_EQ(get(path_of(id, wrong), "tml-a", "DELETE").status, 404) << wrong;
}

TEST_F(ListingTest, AnOverwrittenCheckpointGivesItsDiskBack) {
  const std::string id = run(), path = saved(id, 1);
  const auto folders = [&] {
    int out = 0;
    for ([[maybe_unused]] const auto& one :
         std::filesystem::directory_iterator(dir_ / "checkpoints" / id / "weights"))
      ++out;
    return out;
  };
  for (int64_t seq_id = 2; seq_id < 5; ++seq_id) {
    EXPECT_EQ(text(save(id, seq_id, "a", {{"overwrite", true}}), "path"), path);
    EXPECT_TRUE(until([&] { return folders() == 1; })) << seq_id;
  }
  restart();
  EXPECT_EQ(folders(), 1);
  const Json load = {{"session_id", session()}, {"model_seq_id", 0}, {"path", path}};
  EXPECT_EQ(text(result(post("/api/v1/load_weights", load)), "path"), path);
}

TEST_F(ListingTest, ARunThatBeganWithADeletedCheckpointGoesOnThroughAStart) {
  const std::string id = run(), path = saved(id, 1);
  const Json load = {{"session_id", session()}, {"model_seq_id", 0}, {"path", path}};
  const std::string loaded = text(result(post("/api/v1/load_weights", load)), "model_id");
  EXPECT_EQ(get(path_of(id, "a"), "tml-a", "DELETE").status, 200);
  result(train(loaded, 1));
  result(step(loaded, 2));
  restart();
  EXPECT_TRUE(parse(result(step(loaded, 3))).contains("metrics"));
  EXPECT_FALSE(run_of(loaded).at("corrupted").as_bool());
}

TEST_F(ListingTest, ADeletedRunIsGoneWithAllThatIsItsOwnThroughAStart) {
  const std::string s = session();
  const std::string id = text(result(post("/api/v1/create_model", model(s))), "model_id");
  const std::string path = saved(id, 1);
  const Response publish =
      post("/api/v1/save_weights_for_sampler", {{"model_id", id}, {"seq_id", 2}});
  const std::string sampler = text(result(publish), "sampling_session_id");
  const Response waits = train(id, 9);
  const std::string of = "/api/v1/training_runs/" + id;
  EXPECT_EQ(get(of, "tml-b", "DELETE").status, 404);
  EXPECT_EQ(get(of, "tml-a", "DELETE").status, 200);
  EXPECT_NE(text(failure(waits), "error").find("was deleted"), std::string::npos);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(get(of).status, 404);
    EXPECT_EQ(get(of, "tml-a", "DELETE").status, 404);
    EXPECT_EQ(step(id, 3).status, 404);
    EXPECT_EQ(post("/api/v1/weights_info", {{"tinker_path", path}}).status, 404);
    EXPECT_EQ(get("/api/v1/samplers/" + sampler).status, 404);
    EXPECT_EQ(parse(get("/api/v1/sessions/" + s)),
              (JsonObject{{"training_run_ids", JsonArray{}}, {"sampler_ids", JsonArray{}}}));
    EXPECT_TRUE(until([&] {
      return !std::filesystem::exists(dir_ / "checkpoints" / id / "weights" / "a") &&
             !std::filesystem::exists(dir_ / "snapshots" / id);
    }));
    restart();
  }
}

TEST_F(ListingTest, AFinishedRunTakesNoMoreAndIsStillThere) {
  const std::string id = run(), of = "/api/v1/training_runs/" + id;
  const Response first = train(id, 1), third = step(id, 3);
  EXPECT_EQ(post(of + "/finish", JsonObject{}, "tml-b").status, 404);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(post(of + "/finish", JsonObject{}).status, 200);
  EXPECT_EQ(text(failure(third), "category"), "user");
  EXPECT_EQ(result(first).status, 200);
  EXPECT_EQ(step(id, 2).status, 422);
  EXPECT_EQ(train(id, 1).body, first.body);
  EXPECT_EQ(get(of).status, 200);
}

TEST_F(ListingTest, ACheckpointsTimeToLiveIsSetAndTakenBackAndOverIsDeleted) {
  const std::string id = run();
  saved(id, 1);
  const auto expires = [&] { return core_->domain().checkpoint(id + "/weights/a")->expires_ms; };
  const int64_t before = core::milliseconds_since_1970();
  EXPECT_EQ(put_ttl(id, "a", R"({"ttl_seconds": 100})").status, 200);
  EXPECT_GE(expires(), before + 100'000);
  EXPECT_LE(expires(), core::milliseconds_since_1970() + 100'000);
  EXPECT_EQ(put_ttl(id, "a", R"({"ttl_seconds": null})").status, 200);
  EXPECT_EQ(expires(), 0);
  for (const char* wrong : {"0", "-1", "1.5", "\"1\"", "9223372036854775807", "1e99", "[]"}) {
    const Response told = put_ttl(id, "a", "{\"ttl_seconds\": " + std::string(wrong) + "}");
    EXPECT_EQ(told.status, 422) << wrong;
    EXPECT_NE(told.body.find("ttl_seconds"), std::string::npos) << told.body;
  }
  EXPECT_EQ(put_ttl(id, "a", "{\"ttl_seconds\"").status, 422);
  EXPECT_EQ(put_ttl(id, "b", R"({"ttl_seconds": 1})").status, 404);
  EXPECT_EQ(expires(), 0) << "what was wrong changed nothing";
  commit_and_restart(core::KeepCheckpoint{id + "/weights/a", false, before - 1});
  EXPECT_TRUE(until([&] { return names_of(id).empty(); }));
  EXPECT_TRUE(
      until([&] { return !std::filesystem::exists(dir_ / "checkpoints" / id / "weights" / "a"); }));
}

TEST_F(ListingTest, PublishingTwiceIsRefusedAndATimeToLiveStays) {
  const std::string id = run();
  saved(id, 1);
  EXPECT_EQ(put_ttl(id, "a", R"({"ttl_seconds": 100})").status, 200);
  const auto of = [&] { return *core_->domain().checkpoint(id + "/weights/a"); };
  const int64_t expires = of().expires_ms;
  for (const int status : {200, 422}) {
    EXPECT_EQ(answer(request(path_of(id, "a") + "/publish", "", "tml-a")).status, status);
    EXPECT_TRUE(of().is_public);
  }
  EXPECT_EQ(put_ttl(id, "a", R"({"ttl_seconds": 100})").status, 200);
  EXPECT_TRUE(of().is_public) << "a time to live leaves it published";
  for (const int status : {200, 422}) {
    EXPECT_EQ(get(path_of(id, "a") + "/publish", "tml-a", "DELETE").status, status);
    EXPECT_FALSE(of().is_public);
  }
  EXPECT_GE(of().expires_ms, expires);
  EXPECT_EQ(post(path_of(id, "none") + "/publish", JsonObject{}).status, 404);
}

}  // namespace
}  // namespace twinkle::server
