// Memory ends while a request is handled, at each allocation that is made for it in turn, before
// its record and behind it: it is told to come again, and is then done once.
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <new>

#include "twinkle/engine/heap_for_test.h"
#include "twinkle/server/service_for_test.h"

namespace twinkle::server {

std::optional<Response> create_session(Call& call);  // as routes.cpp has it

namespace {

using engine::HeapShortage;

class NoMemoryTest : public ServiceTest {
 protected:
  NoMemoryTest() {
    go_on();
    id_ = run();
  }
  static void end_shortage() { engine::succeeding_allocations = -1; }
  static Request json(const std::string& path, const Json& body) {
    return request(path, boost::json::serialize(body), "tml-a");
  }
  Request training(int64_t seq_id) const {
    Request out = request("/api/v1/forward_backward",
                          forward_backward_bytes(id_, seq_id, "cross_entropy"), "tml-a");
    out.headers["content-type"] = "application/x-protobuf";
    return out;
  }
  // One of each, in the order of their numbers.
  std::vector<Request> requests() const {
    const std::string session = id_.substr(0, id_.find(':'));
    return {json("/api/v1/create_sampling_session",
                 {{"session_id", session}, {"sampling_session_seq_id", 0}, {"base_model", "null"}}),
            training(1),
            json("/api/v1/optim_step",
                 {{"model_id", id_}, {"seq_id", 2}, {"adam_params", {{"learning_rate", 0.1}}}}),
            json("/api/v1/asample",
                 {{"sampling_session_id", session + ":sample:0"},
                  {"seq_id", 0},
                  {"prompt", {{"chunks", {{{"tokens", {1, 2, 3}}, {"type", "encoded_text"}}}}}},
                  {"sampling_params", {{"max_tokens", 3}}}})};
  }
  // The answer to a request for which allocation number `before` fails until its record is
  // appended, or number `behind` when that is written; -1: none. Nothing: it was not looked at, and
  // its connection answers.
  std::optional<Response> answer_short(Request request, int64_t before, int64_t behind) {
    const auto out = std::make_shared<std::optional<Response>>();
    Reply reply = [out](Response r) { *out = std::move(r); };
    try {
      const HeapShortage shortage(before, 1);
      route(std::move(request), *services_, std::move(reply));
    } catch (const std::bad_alloc&) {
      return std::nullopt;
    }
    for (int i = 0; !*out && i < 10000; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const HeapShortage shortage(behind, 1);
      loop_->run();
    }
    return out->value_or(Response{.status = -1});  // nothing came
  }
  // Waits until nothing of it is left to do, a snapshot neither.
  void end(const Response& ack) {
    if (parse(ack).contains("request_id")) result(ack);
    EXPECT_TRUE(loop_->run_until([&] { return services_->snapshots.saving(id_) < 0; }));
  }
  static bool has_retry_after(const Response& response) {
    return std::ranges::count(response.headers, "Retry-After",
                              [](const auto& h) -> const auto& { return h.first; }) == 1;
  }
  // All have been done once, also by a start, and are the same when they come again.
  void expect_done(const std::vector<Response>& acks) {
    for (int start = 0; start < 2; ++start) {
      for (size_t i = 0; i < acks.size(); ++i) {
        EXPECT_EQ(answer(requests()[i]).body, acks[i].body);
        if (parse(acks[i]).contains("request_id")) result(acks[i]);
      }
      EXPECT_EQ(done(id_).size(), 2U);
      EXPECT_EQ(services_->samplers.size(), 1U);
      EXPECT_EQ(services_->promises.num_ever(), 4) << "the run, and three operations";
      open();
      go_on();
    }
  }

  std::string id_;
};

TEST_F(NoMemoryTest, BeforeARecordARequestLeavesNothing) {
  std::vector<Response> acks;
  for (const Request& request : requests()) {
    const int64_t bytes = services_->history.bytes();
    int64_t n = 0;
    for (; n < 1000; ++n) {
      const auto told = answer_short(request, n, -1);
      if (told && told->status == 200) {
        acks.push_back(*told);
        break;
      }
      ASSERT_EQ(services_->history.bytes(), bytes) << request.path << ' ' << n;
      if (!told) continue;
      ASSERT_EQ(told->status, 503) << request.path << ' ' << n << ' ' << told->body;
      ASSERT_TRUE(has_retry_after(*told)) << request.path << ' ' << n;
    }
    EXPECT_GT(n, 20) << request.path;
    EXPECT_LT(n, 1000) << request.path;
  }
  expect_done(acks);
}

TEST_F(NoMemoryTest, BehindARecordARequestIsForgottenUntilItHasChangedSomething) {
  std::vector<Response> acks;
  for (const Request& request : requests()) {
    // The last that may refuse it: what comes then is a few words.
    backend_->on_validate = end_shortage;
    backend_->on_check = [](const engine::Operation&) { end_shortage(); };
    int64_t n = 0;
    for (; n < 1000; ++n) {
      const int64_t ever = services_->promises.num_ever();
      const Response told = *answer_short(request, -1, n);
      if (told.status == 200) {
        acks.push_back(told);
        end(told);  // not while memory ends for the next one
        break;
      }
      ASSERT_EQ(told.status, 503) << request.path << ' ' << n << ' ' << told.body;
      ASSERT_TRUE(has_retry_after(told)) << request.path << ' ' << n;
      ASSERT_EQ(services_->promises.num_ever(), ever) << request.path << ' ' << n;
    }
    EXPECT_GT(n, 10) << request.path;
    EXPECT_LT(n, 1000) << request.path;
  }
  expect_done(acks);
}

TEST_F(NoMemoryTest, BehindWhatARequestHasChangedItComesAgainToTheSameFuture) {
  const auto go = std::make_shared<std::atomic<bool>>(false);
  executor_->on_batch = [go] {
    while (!*go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  backend_->on_submit = [] {
    engine::succeeding_allocations = 0;
    engine::failing_allocations = 1;
  };
  const Response told = answer(training(1));
  backend_->on_submit = [] {};
  EXPECT_EQ(told.status, 503) << told.body;
  EXPECT_TRUE(has_retry_after(told));
  EXPECT_EQ(services_->promises.num_open(), 1) << "it is being done";
  *go = true;
  std::vector<Response> acks;
  for (const Request& request : requests()) acks.push_back(answer(request));
  EXPECT_EQ(text(acks[1], "request_id"), id_ + ":1");
  expect_done(acks);
}

TEST_F(NoMemoryTest, ACheckpointThatNoMemoryLetReadIsReadForTheNextSample) {
  const std::string session = id_.substr(0, id_.find(':'));
  const Response saved = answer(
      json("/api/v1/save_weights_for_sampler", {{"model_id", id_}, {"seq_id", 1}, {"path", "a"}}));
  const std::string path = text(result(saved), "path");
  const Response made =
      answer(json("/api/v1/create_sampling_session",
                  {{"session_id", session}, {"sampling_session_seq_id", 0}, {"model_path", path}}));
  const std::string sampler = text(made, "sampling_session_id");
  const Request sample =
      json("/api/v1/asample",
           {{"sampling_session_id", sampler},
            {"seq_id", 0},
            {"prompt", {{"chunks", {{{"tokens", {1, 2, 3}}, {"type", "encoded_text"}}}}}},
            {"sampling_params", {{"max_tokens", 3}}}});
  open();
  go_on();  // whose engine has not got the checkpoint
  std::optional<Response> told;
  int64_t n = 0;
  for (; n < 1000 && (!told || told->status != 200); ++n) {
    told = answer_short(sample, n, -1);
    if (!told) continue;
    ASSERT_TRUE(told->status == 200 || told->status == 503) << n << ' ' << told->body;
  }
  EXPECT_GT(n, 20);
  ASSERT_LT(n, 1000);
  EXPECT_EQ(result(*told).content_type, "application/x-protobuf");
}

// Whose id no client knows: it would count for ever.
TEST_F(NoMemoryTest, ASessionOfWhichNoMemoryLetTellIsNotThere) {
  const Request request = json("/api/v1/create_session", JsonObject{});
  const auto call = [&] {
    services_->decisions.come();
    return Call{request, {}, JsonObject{}, "alice", new_id(), 0, *services_, {}};
  };
  Call first = call(), second = call(), other = call();
  create_session(first);  // the tenant's, which is counted from here on
  const int64_t num = engine::num_allocations([&] { create_session(second); });
  const size_t before = services_->sessions.size();
  // 0: memory ended before it was there. Where it ends in the middle the process does.
  const auto status = [&](int64_t n) {
    try {
      const HeapShortage shortage(n, 1);
      create_session(other);
    } catch (const std::bad_alloc&) {
      return services_->sessions.size() == before ? 0 : 1;
    }
    return 2;
  };
  const auto is_well = [](int status) {
    return (WIFEXITED(status) && WEXITSTATUS(status) == 0) ||
           (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  };
  EXPECT_GT(num, 4);
  for (int64_t n = 0; n < num; ++n) EXPECT_EXIT(std::_Exit(status(n)), is_well, "") << n;
}

}  // namespace
}  // namespace twinkle::server
