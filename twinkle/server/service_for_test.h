// The service for tests: a dispatcher over a null model behind it, no socket before it. A test
// sends requests and reads answers, and time passes when it says so.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "twinkle/engine/schedule/dispatcher.h"
#include "twinkle/engine/schedule/null_executor_for_test.h"
#include "twinkle/io/scratch_dir_for_test.h"
#include "twinkle/server/routes.h"
#include "twinkle/server/service/loop_for_test.h"

namespace twinkle::server {

class NullBackend : public Backend {
 public:
  explicit NullBackend(engine::Dispatcher& dispatcher) : dispatcher_(dispatcher) {}
  const ModelFacts& model() const override { return model_; }
  engine::Accepted check(engine::Operation operation) override {
    std::vector<engine::Operation> one;
    one.push_back(std::move(operation));
    return std::move(dispatcher_.accept(std::move(one))[0]);
  }
  int64_t submit(engine::Accepted accepted, engine::OnDone on_done) override {
    std::vector<engine::Accepted> one;
    one.push_back(std::move(accepted));
    return dispatcher_.submit(std::move(one), {std::move(on_done)})[0];
  }

 private:
  engine::Dispatcher& dispatcher_;
  const ModelFacts model_{.directory = "null", .names = {"null"}, .max_positions = 64};
};

class ServiceTest : public testing::Test {
 protected:
  ServiceTest() { open(); }
  void open(engine::DispatcherOptions options = {}) {
    options.gather_ms = 0;
    dispatcher_.reset();
    dispatcher_ = std::make_unique<engine::Dispatcher>(options, executor_);
    backend_ = std::make_unique<NullBackend>(*dispatcher_);
    services_ = std::make_unique<Services>(*backend_, loop_, dir_.path());
  }
  ~ServiceTest() override {
    dispatcher_->close();  // its thread posts to the loop
    dispatcher_.reset();
  }

  // Sends one request; its answer when it comes.
  std::shared_ptr<std::optional<Response>> send(Request request) {
    auto out = std::make_shared<std::optional<Response>>();
    route(request, *services_, [out](Response r) {
      if (!*out) *out = std::move(r);
    });
    return out;
  }
  Response answer(Request request) {
    const auto out = send(std::move(request));
    EXPECT_TRUE(loop_.run_until([&] { return out->has_value(); }));
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
  // What is told of a request that was accepted.
  Response result(const Response& ack, const std::string& key = "tml-a") {
    EXPECT_EQ(ack.status, 200) << ack.body;
    return post("/api/v1/retrieve_future", {{"request_id", parse(ack).at("request_id")}}, key);
  }
  static JsonObject parse(const Response& response) {
    return parse_json(response.body, "the answer").as_object();
  }

  ScratchDir dir_;
  LoopForTest loop_;
  engine::NullExecutor executor_;
  std::unique_ptr<engine::Dispatcher> dispatcher_;
  std::unique_ptr<NullBackend> backend_;
  std::unique_ptr<Services> services_;
};

}  // namespace twinkle::server
