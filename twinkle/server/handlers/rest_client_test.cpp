// What the SDK's RestClient asks of a run and of a checkpoint.
#include "twinkle/server/history/truncation_for_test.h"

namespace twinkle::server {
namespace {

class RestClientTest : public TruncationTest {
 protected:
  RestClientTest() { serve_with(int64_t{1} << 30); }
  // On a state that has taken the place of all records.
  void restart_from_a_state() {
    serve_with(1);
    EXPECT_TRUE(truncate());
    restart();
  }
  JsonObject run_of(const std::string& id) {
    Request r = request("/api/v1/training_runs/" + id, "", "tml-a");
    r.method = "GET";
    return parse(answer(r));
  }
  JsonObject checkpoint_of(const std::string& path) {
    return parse(post("/api/v1/weights_info", {{"tinker_path", path}}));
  }
  std::string saved(const std::string& id, int64_t seq_id) {
    return text(
        result(post("/api/v1/save_weights", {{"model_id", id}, {"seq_id", seq_id}, {"path", "a"}})),
        "path");
  }
  // As if it had come at this time, and then the server had been killed.
  void step_at(const std::string& id, int64_t seq_id, int64_t time_ms, double lr = 0.1) {
    bool is_written = false;
    const Json body = {
        {"model_id", id}, {"seq_id", seq_id}, {"adam_params", {{"learning_rate", lr}}}};
    services_->history.append(Command{.method = "POST",
                                      .path = "/api/v1/optim_step",
                                      .content_type = "application/json",
                                      .owner = services_->runs.find(id)->owner,
                                      .body = boost::json::serialize(body),
                                      .chance = new_id(),
                                      .time_ms = time_ms},
                              [&](uint64_t, const std::exception_ptr&) { is_written = true; });
    EXPECT_TRUE(loop_->run_until([&] { return is_written; }));
    restart();
  }
};

TEST_F(RestClientTest, ACheckpointIsFoundByModelScopesSchemeAndToldByTinkers) {
  const std::string id = run();
  const std::string path = saved(id, 1);
  const std::string other = "twinkle://" + path.substr(std::string("tinker://").size());
  EXPECT_EQ(checkpoint_of(other), checkpoint_of(path));
  const std::string session = text(post("/api/v1/create_session", JsonObject{}), "session_id");
  const Json load = {{"session_id", session}, {"model_seq_id", 0}, {"path", other}};
  EXPECT_EQ(text(result(post("/api/v1/load_weights", load)), "path"), path);
  const Response none =
      post("/api/v1/weights_info", {{"tinker_path", "twinkle://" + id + "/weights/b"}});
  EXPECT_EQ(none.status, 404) << none.body;
}

TEST_F(RestClientTest, ARunTellsWhenItsLastRequestWasAcceptedAlsoFromAState) {
  const std::string id = run();
  step_at(id, 1, 4102444800999);
  step_at(id, 2, 4102444700000);      // by a clock that was set back: the wrong time is gone
  step_at(id, 3, 4102444900000, -1);  // is refused
  const JsonObject told{{"training_run_id", id},
                        {"base_model", "null"},
                        {"model_owner", services_->runs.find(id)->owner},
                        {"is_lora", true},
                        {"lora_rank", 8},
                        {"corrupted", false},
                        {"last_request_time", "2099-12-31T23:58:20Z"}};
  EXPECT_EQ(run_of(id), told);
  restart_from_a_state();
  EXPECT_EQ(run_of(id), told);
  const std::string now(run_of(run()).at("last_request_time").as_string());
  EXPECT_TRUE("2026" < now && now < "2100") << now;
}

TEST_F(RestClientTest, ACheckpointTellsItsGroupsOfModulesAlsoFromAStateAndOfARunThatBeganWithIt) {
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
  restart_from_a_state();
  EXPECT_EQ(checkpoint_of(path), told);
  EXPECT_EQ(checkpoint_of(saved(loaded, 1)), told);
  EXPECT_EQ(run_of(loaded).at("lora_rank").as_int64(), 8);
}

TEST_F(RestClientTest, ARunThatIsLostIsTold) {
  const std::string id = run(), path = saved(id, 1);
  const Response ack = post("/api/v1/load_weights",
                            {{"session_id", session()}, {"model_seq_id", 0}, {"path", path}});
  const std::string loaded = text(result(ack), "model_id");
  services_->operations.lose(loaded, "its checkpoint was removed");
  EXPECT_TRUE(run_of(loaded).at("corrupted").as_bool());
  EXPECT_FALSE(run_of(id).at("corrupted").as_bool());
}

}  // namespace
}  // namespace twinkle::server
