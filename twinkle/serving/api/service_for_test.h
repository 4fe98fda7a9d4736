// The service for tests: the core over a null model, its routes before it, no socket. A test sends
// requests and reads answers, and time passes when it says so.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "twinkle/serving/api/operator.h"
#include "twinkle/serving/api/router.h"
#include "twinkle/serving/core/core_for_test.h"
#include "twinkle/serving/openai/routes.h"
#include "twinkle/serving/tinker/routes.h"

namespace twinkle::server {

class ServiceTest : public core::CoreTest {
 protected:
  ServiceTest() { begin(); }
  ~ServiceTest() override { router_.reset(); }
  void begin() {
    room_.reset();
    start();
    room_ = std::make_unique<BodyRoom>(BodyRoomOptions(), *loop_);
    router_ = std::make_unique<api::Router>(*core_, service_, *room_);
    router_->add(api::operator_routes());
    router_->add(tinker::routes());
    router_->add(openai::routes());
  }
  // As a kill would end it.
  void restart() {
    router_.reset();
    room_.reset();
    begin();
  }

  // Goes on with what the journal holds, as after a kill.
  void open(engine::DispatcherOptions options = {}) { queue_ = options; }
  void go_on() { restart(); }
  // Asks for keys of this file from here on.
  void ask_for_keys(const store::KeyFile& file, AccessOptions options = {}) {
    router_->ask_for_keys(Access(file, std::move(options)));
  }

  // The file of the keys was changed: that is seen.
  void see_keys() {
    for (int i = 0; i < 2; ++i) {  // a look may have begun before the change
      loop_->pass(std::chrono::seconds(1));
      bool is_over = false;
      router_->keys_disk().run([] {}, *loop_, [&](const auto&) { is_over = true; });
      EXPECT_TRUE(loop_->run_until([&] { return is_over; }));
    }
  }

  // Sends one request; its answer when it comes.
  std::shared_ptr<std::optional<Response>> send(Request request) {
    auto out = std::make_shared<std::optional<Response>>();
    router_->route(request, [out](Response r) {
      if (*out) return;
      if (r.shared) r.body = r.text();  // as a client reads it
      *out = std::move(r);
    });
    return out;
  }
  Response answer(Request request) {
    const auto out = send(std::move(request));
    EXPECT_TRUE(until([&] { return out->has_value(); }));
    return out->value_or(Response{.status = -1});
  }
  Response post(const std::string& path, const Json& body, const std::string& key = "tml-a") {
    return answer(request(path, boost::json::serialize(body), key));
  }
  Response get(const std::string& path, const std::string& key = "tml-a",
               const std::string& verb = "GET") {
    Request out;
    out.method = verb;
    const size_t query = path.find('?');
    out.path = path.substr(0, query);
    if (query != std::string::npos) out.query = path.substr(query + 1);
    out.headers = {{"x-api-key", key}};
    return answer(out);
  }
  static Request request(const std::string& path, std::string body, const std::string& key) {
    Request out;
    out.method = "POST";
    out.path = path;
    out.headers = {{"x-api-key", key}, {"content-type", "application/json"}};
    out.body = std::move(body);
    return out;
  }
  Response outcome(const Response& ack, const std::string& key = "tml-a") {
    EXPECT_EQ(ack.status, 200) << ack.body;
    const Response out =
        post("/api/v1/retrieve_future", {{"request_id", parse(ack).at("request_id")}}, key);
    EXPECT_EQ(out.status, 200) << out.body;
    return out;
  }
  Response result(const Response& ack, const std::string& key = "tml-a") {
    Response out = outcome(ack, key);
    EXPECT_FALSE(out.body.starts_with(R"({"error":)")) << out.body;
    return out;
  }
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

  api::Service service_;
  std::unique_ptr<BodyRoom> room_;
  std::unique_ptr<api::Router> router_;
};

}  // namespace twinkle::server
