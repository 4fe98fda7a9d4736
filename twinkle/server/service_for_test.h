// The service for tests: a dispatcher over a null model behind it, no socket before it. A test
// sends requests and reads answers, and time passes when it says so.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "twinkle/engine/schedule/dispatcher.h"
#include "twinkle/engine/schedule/null_executor_for_test.h"
#include "twinkle/io/scratch_dir_for_test.h"
#include "twinkle/server/history/state_file.h"
#include "twinkle/server/null_backend_for_test.h"
#include "twinkle/server/routes.h"
#include "twinkle/server/service/loop_for_test.h"

namespace twinkle::server {

class ServiceTest : public testing::Test {
 protected:
  ServiceTest() { open(); }
  void open(engine::DispatcherOptions options = {}) {
    options.gather_ms = 0;
    close();
    loop_ = std::make_unique<LoopForTest>();
    executor_ = std::make_unique<engine::NullExecutor>();
    dispatcher_ = std::make_unique<engine::Dispatcher>(options, *executor_);
    backend_ = std::make_unique<NullBackend>(*dispatcher_, names_);
    services_ = std::make_unique<Services>(*backend_, *loop_, dir_.path(), options_);
    backend_->times = &services_->metrics.operations;
  }
  ~ServiceTest() override { close(); }
  // As a kill would end it: what has not ended is not told.
  void close() {
    if (!services_) return;
    services_->close([this] { loop_->run(); });
    dispatcher_->close();  // its thread posts to the loop
    services_.reset();
    dispatcher_.reset();
  }
  // With a journal: goes on with what it holds.
  void go_on(const Opened& opened = {}, bool accept_other_arithmetic = false) {
    services_->open(
        opened, accept_other_arithmetic,
        [this](uint64_t sequence, const Command& command) {
          replay(sequence, command, *services_);
        },
        [this] {
          loop_->run();
          does_again_ = services_->operations.num_again() > 0;
        });
    does_again_ = false;
  }

  // Asks for keys of this file from here on.
  void ask_for_keys(const store::KeyFile& file, AccessOptions options = {}) {
    services_->access = Access(file, std::move(options));
    services_->watch_keys();
  }
  // The file of the keys was changed: that is seen.
  void see_keys() {
    for (int i = 0; i < 2; ++i) {  // a look may have begun before the change
      loop_->pass(std::chrono::seconds(1));
      bool is_over = false;
      services_->keys_disk.run([] {}, *loop_, [&](const auto&) { is_over = true; });
      EXPECT_TRUE(loop_->run_until([&] { return is_over; }));
    }
  }

  // Sends one request; its answer when it comes.
  std::shared_ptr<std::optional<Response>> send(Request request) {
    auto out = std::make_shared<std::optional<Response>>();
    route(request, *services_, [out](Response r) {
      if (*out) return;
      if (r.shared) r.body = r.text();  // what a client reads
      *out = std::move(r);
    });
    return out;
  }
  Response answer(Request request) {
    const auto out = send(std::move(request));
    EXPECT_TRUE(loop_->run_until([&] { return out->has_value(); }));
    return out->value_or(Response{.status = -1});
  }
  Response post(const std::string& path, const Json& body, const std::string& key = "tml-a") {
    return answer(request(path, boost::json::serialize(body), key));
  }
  static Request request(const std::string& path, std::string body, const std::string& key) {
    Request out;
    out.method = "POST";
    out.path = path;
    out.headers = {{"x-api-key", key}, {"content-type", "application/json"}};
    out.body = std::move(body);
    return out;
  }
  // What is told of a request that was accepted, when it has ended.
  Response outcome(const Response& ack, const std::string& key = "tml-a") {
    EXPECT_EQ(ack.status, 200) << ack.body;
    const Response out =
        post("/api/v1/retrieve_future", {{"request_id", parse(ack).at("request_id")}}, key);
    EXPECT_EQ(out.status, 200) << out.body;
    return out;
  }
  // The same of one that was done.
  Response result(const Response& ack, const std::string& key = "tml-a") {
    Response out = outcome(ack, key);
    EXPECT_FALSE(out.body.starts_with(R"({"error":)")) << out.body;
    return out;
  }
  // And of one that failed.
  Response failure(const Response& ack, const std::string& key = "tml-a") {
    Response out = outcome(ack, key);
    EXPECT_TRUE(out.body.starts_with(R"({"error":)")) << out.body;
    return out;
  }
  static JsonObject parse(const Response& response) {
    return parse_json(response.body, "the answer").as_object();
  }

  std::string session(const std::string& key = "tml-a") {
    return text(post("/api/v1/create_session", JsonObject{}, key), "session_id");
  }
  static std::string text(const Response& response, const char* name) {
    return std::string(parse(response).at(name).as_string());
  }
  static Json model(const std::string& session) {
    return {{"session_id", session},
            {"model_seq_id", 0},
            {"base_model", "null"},
            {"lora_config", {{"rank", 8}, {"train_unembed", false}}}};
  }
  std::string run(const std::string& key = "tml-a") {
    const Response ack = post("/api/v1/create_model", model(session(key)), key);
    return text(result(ack, key), "model_id");
  }
  Response train(const std::string& run, int64_t seq_id,
                 const std::string& loss = "cross_entropy") {
    Request r =
        request("/api/v1/forward_backward", forward_backward_bytes(run, seq_id, loss), "tml-a");
    r.headers["content-type"] = "application/x-protobuf";
    return answer(r);
  }
  Response step(const std::string& run, int64_t seq_id, double lr = 0.1) {
    return post("/api/v1/optim_step",
                {{"model_id", run}, {"seq_id", seq_id}, {"adam_params", {{"learning_rate", lr}}}});
  }
  // States take the place of the journal's records, where each record is enough for that. One that
  // has begun before this call holds less; the next is of what is there now. `key`: whose sessions
  // make records meanwhile.
  bool truncate(const std::string& key = "tml-a") {
    const int64_t enough = services_->truncation.num_taken() + 2;
    for (int i = 0; i < 200 && services_->truncation.num_taken() < enough; ++i) {
      session(key);
      std::this_thread::sleep_for(std::chrono::milliseconds(i < 100 ? 1 : 10));
      loop_->run();
    }
    return services_->truncation.num_taken() >= enough;
  }
  // Requests that have not ended, in the state that took the place of records.
  int64_t num_carried() const {
    const State state = StateReader(dir_ / "journal").state();
    return std::ranges::count_if(state.promises,
                                 [](const PromiseState& p) { return p.sequence > 0; });
  }
  // What has been done to the engine's tenant, in order.
  std::vector<std::string> done(const std::string& run) {
    std::vector<engine::Operation> one;
    one.emplace_back(engine::Inspect{run});
    const auto result =
        std::get<engine::InspectResult>(dispatcher_->submit(std::move(one))[0].get());
    std::vector<std::string> out;
    for (const auto& t : result.tensors) out.push_back(t.name.substr(0, 4));
    return out;
  }

  ServiceOptions options_;
  std::vector<std::string> names_{"null"};
  ScratchDir dir_;
  std::unique_ptr<LoopForTest> loop_;
  std::unique_ptr<engine::NullExecutor> executor_;
  std::unique_ptr<engine::Dispatcher> dispatcher_;
  std::unique_ptr<NullBackend> backend_;
  std::atomic<bool> does_again_ = false;  // what had ended before a start that goes on
  std::unique_ptr<Services> services_;
};

}  // namespace twinkle::server
