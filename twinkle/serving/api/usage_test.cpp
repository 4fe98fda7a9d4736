// A tenant's usage, and requests that its rates hold, in the service.
#include <cmath>
#include <sstream>

#include "twinkle/base/file.h"
#include "twinkle/server/tenants/usage.h"
#include "twinkle/serving/api/service_for_test.h"

namespace twinkle::server {
namespace {

using std::chrono::milliseconds;

TEST(UsageLines, AreKeptByTenantKeyAndRunAndSummedByTenant) {
  Usage usage;
  usage.add("a", "k1", "s:train:0:7", {.trained = 10, .seconds = 0.5});
  usage.add("a", "k1", "s:train:0:8", {.trained = 5});
  usage.add("a", "k1", "s:train:0:sample:9:0", {.prompt = 3, .generated = 4});
  usage.add("a", "k2", "s:train:0:9", {.trained = 1});
  usage.add("a", "k2", "s:sample:0:0", {.prompt = 2});
  usage.add("b", "", "t:train:0:0", {});
  const auto lines = usage.lines();
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0].run, "s:train:0");
  EXPECT_EQ(lines[0].requests, 3);
  EXPECT_EQ(lines[0].used.trained, 15);
  EXPECT_EQ(lines[0].used.prompt, 3);
  EXPECT_EQ(lines[0].used.generated, 4);
  EXPECT_EQ(lines[0].used.seconds, 0.5);
  EXPECT_EQ(lines[1].run, "s");
  Usage again;
  again.restore(lines);
  again.add("b", "", "t:train:0:1", {.trained = 2});
  const auto sums = again.by_tenant(9);
  ASSERT_EQ(sums.size(), 2u);
  EXPECT_EQ(sums[0].used.trained, 16);
  EXPECT_EQ(sums[1].requests, 2);
  const auto one = again.by_tenant(1);
  ASSERT_EQ(one.size(), 2u);
  EXPECT_EQ(one[0].tenant, "a");
  EXPECT_EQ(one[1].tenant, "(others)");
  EXPECT_EQ(one[1].requests, 2);
}

class UsageTest : public ServiceTest {
 protected:
  UsageTest() { admit(); }
  void admit() { ask_for_keys(keys_); }
  void limit(const store::ChangeQuota& change) {
    keys_.limit("alice", change);
    see_keys();
  }
  void restart() {
    ServiceTest::restart();
    admit();
  }
  // A forward_backward of three tokens by alice.
  Response train_three(const std::string& run, int64_t seq_id) {
    Request r = request("/api/v1/forward_backward",
                        forward_backward_bytes(run, seq_id, "cross_entropy"), alice_.text);
    r.headers["content-type"] = "application/x-protobuf";
    return answer(r);
  }
  Response step_of(const std::string& run, int64_t seq_id) {
    return post("/api/v1/optim_step",
                {{"model_id", run}, {"seq_id", seq_id}, {"adam_params", {{"learning_rate", 0.1}}}},
                alice_.text);
  }
  std::string sampler_of(const std::string& session) {
    const Json body = {
        {"session_id", session}, {"sampling_session_seq_id", 0}, {"base_model", "null"}};
    return text(post("/api/v1/create_sampling_session", body, alice_.text), "sampling_session_id");
  }
  // A prompt of four tokens; whatever max_tokens says, the null model generates three.
  Response sample(const std::string& sampler, int64_t seq_id, int64_t max_tokens = 3) {
    const Json body = {{"sampling_session_id", sampler},
                       {"seq_id", seq_id},
                       {"prompt", {{"chunks", {{{"tokens", {1, 2, 3, 4}}}}}}},
                       {"sampling_params", {{"max_tokens", max_tokens}}}};
    return post("/api/v1/asample", body, alice_.text);
  }
  // A state takes the place of all records that are there now.
  bool compact() {
    const int64_t enough = core_->num_states() + 2;
    return until([&] {
      if (core_->num_states() < enough) session(alice_.text);
      return core_->num_states() >= enough;
    });
  }
  std::shared_ptr<std::optional<Response>> poll(const Response& ack) {
    return send(request("/api/v1/retrieve_future",
                        boost::json::serialize(JsonObject{{"request_id", text(ack, "request_id")}}),
                        alice_.text));
  }
  bool has_ended(const std::shared_ptr<std::optional<Response>>& poll) {
    return until([&] { return poll->has_value(); }) && (*poll)->status == 200;
  }
  JsonArray usage() {
    Request r = request("/api/v1/usage", "", reader_);
    r.method = "GET";
    return parse(answer(r)).at("usage").as_array();
  }

  std::string amounts() {
    Request r = request("/api/v1/usage", "", reader_);
    r.method = "GET";
    return boost::json::serialize(parse(answer(r)).at("tenants"));
  }

  std::atomic<double> seconds_ = 0;
  const store::KeyFile keys_{dir_.path()};
  const store::KeyFile::Created alice_ =
      keys_.create({.tenant = "alice", .scopes = {"train", "sample"}});
  const std::string reader_ = keys_.create({.tenant = "op", .scopes = {"metrics"}}).text;
};

TEST_F(UsageTest, UsageTellsWhatALimitedTenantHasNextToItsLimits) {
  const std::string run = this->run(alice_.text);
  EXPECT_EQ(amounts(), "[]");
  limit([](store::Quota& q) { q.max_runs = 4, q.max_adapters = 2; });
  EXPECT_EQ(amounts(),
            R"([{"tenant":"alice","runs":1,"max_runs":4,"adapters":0,"max_adapters":2}])");
  result(post("/api/v1/save_weights_for_sampler", {{"model_id", run}, {"seq_id", 1}, {"path", "a"}},
              alice_.text),
         alice_.text);
  limit([](store::Quota& q) { q.max_runs = 0; });
  EXPECT_EQ(amounts(), R"([{"tenant":"alice","adapters":1,"max_adapters":2}])");
}

TEST_F(UsageTest, WhatIsBeyondARateIsTakenAndHeldAndPollsSayWhy) {
  limit([](store::Quota& q) { q.tokens_per_minute = 5; });
  const std::string run = this->run(alice_.text);
  for (int64_t seq_id = 1; seq_id <= 2; ++seq_id)
    EXPECT_EQ(result(train_three(run, seq_id), alice_.text).status, 200);
  const Response third = train_three(run, 3), stepped = step_of(run, 4);
  EXPECT_EQ(third.status, 200);
  EXPECT_EQ(stepped.status, 200);
  EXPECT_EQ(executor_->num_batches, 2);
  const auto polled = poll(third), behind = poll(stepped);
  loop_->pass(milliseconds(100));
  EXPECT_FALSE(polled->has_value());
  EXPECT_EQ(core_->held_by(run + ":3"),
            "this tenant's limit of 5 tokens a minute: position 1 of 1, about 12 s");
  // Nobody else waits for it.
  const Response others = post("/api/v1/create_session", JsonObject{}, alice_.text);
  EXPECT_EQ(others.status, 200);
  limit([](store::Quota& q) { q.tokens_per_minute = 0; });
  loop_->pass(milliseconds(1100));
  EXPECT_TRUE(has_ended(polled));
  EXPECT_TRUE(has_ended(behind));
  EXPECT_EQ(done(run), (std::vector<std::string>{"2/0", "3/0", "4/0", "step"}));
}

TEST_F(UsageTest, AHeldRequestsPollEndsWith408AndItsPlace) {
  limit([](store::Quota& q) { q.tokens_per_minute = 1; });
  const std::string run = this->run(alice_.text);
  EXPECT_EQ(result(train_three(run, 1), alice_.text).status, 200);  // owes 2 tokens: 120 s
  const auto polled = poll(train_three(run, 2)), behind = poll(step_of(run, 3));
  loop_->pass(milliseconds(30000));
  for (const auto& told : {polled, behind}) {
    ASSERT_TRUE(told->has_value());
    EXPECT_EQ((*told)->status, 408);
    EXPECT_EQ((*told)->body,
              R"({"queue_state":"paused_rate_limit","queue_state_reason":)"
              R"("this tenant's limit of 1 tokens a minute: position 1 of 1, about 90 s"})");
  }
}

// Nobody knows before it has ended: a bucket that is empty by then holds what comes next.
TEST_F(UsageTest, WhatWasComputedIsPaidWhenItHasEnded) {
  executor_->clock = [this] { return seconds_ += 0.25; };
  const std::string run = this->run(alice_.text);
  limit([](store::Quota& q) { q.compute_seconds_per_minute = 0.25; });
  EXPECT_EQ(result(train_three(run, 1), alice_.text).status, 200);
  const auto polled = poll(train_three(run, 2));
  const std::string why = core_->held_by(run + ":2");
  EXPECT_TRUE(
      why.starts_with("this tenant's limit of 0.25 seconds of computing a minute: "
                      "position 1 of 1, about "))
      << why;
  EXPECT_EQ(executor_->num_batches, 1);
  limit([](store::Quota& q) { q.compute_seconds_per_minute = 0; });
  loop_->pass(milliseconds(1100));
  EXPECT_TRUE(has_ended(polled));
}

TEST_F(UsageTest, WhatWasGeneratedIsPaidWhenItHasEndedAndIsUsage) {
  limit([](store::Quota& q) { q.tokens_per_minute = 5; });
  const std::string session = this->session(alice_.text), sampler = sampler_of(session);
  result(sample(sampler, 0), alice_.text);  // 1 of the 5 was left before it generated
  const Response held = sample(sampler, 1);
  const std::string why = core_->held_by(text(held, "request_id"));
  EXPECT_TRUE(why.starts_with("this tenant's limit of 5 tokens a minute: position 1 of 1, about "))
      << why;
  const JsonArray lines = usage();
  ASSERT_EQ(lines.size(), 1u);
  const JsonObject& line = lines[0].as_object();
  EXPECT_EQ(line.at("run"), Json(session));
  EXPECT_EQ(line.at("requests"), 1);
  EXPECT_EQ(line.at("prompt_tokens"), 4);
  EXPECT_EQ(line.at("generated_tokens"), 3);
  EXPECT_EQ(line.at("trained_tokens"), 0);
}

TEST_F(UsageTest, SamplesOfASessionThatEndedAreHeldNoMore) {
  limit([](store::Quota& q) { q.tokens_per_minute = 1; });
  const std::string ends = session(alice_.text), stays = session(alice_.text);
  const std::string mine = sampler_of(ends), others = sampler_of(stays);
  result(sample(mine, 0), alice_.text);  // owes its tokens now
  const std::vector<Response> held{sample(mine, 1), sample(mine, 2)};
  const Response stays_held = sample(others, 0);
  EXPECT_EQ(core_->queues().num_held(), 3);
  EXPECT_EQ(post("/api/v1/sessions/" + ends + "/finish", JsonObject{}, alice_.text).status, 200);
  for (const Response& ack : held)
    EXPECT_NE(failure(ack, alice_.text).body.find("this sample was cancelled"), std::string::npos);
  EXPECT_EQ(core_->queues().num_waiting(), 1);
  const auto line_of_those = usage().at(0).as_object();
  EXPECT_EQ(line_of_those.at("run"), Json(ends));
  EXPECT_EQ(line_of_those.at("requests"), 3);
  EXPECT_EQ(line_of_those.at("prompt_tokens"), 4) << "of the one that was sampled";
  const std::string why = core_->held_by(text(stays_held, "request_id"));
  EXPECT_NE(why.find("position 1 of 1"), std::string::npos) << why;
}

TEST_F(UsageTest, WhatACancelledSampleHadGeneratedIsPaidAndIsUsageAfterAStartToo) {
  limit([](store::Quota& q) { q.tokens_per_minute = 5; });
  std::atomic<bool> go = false;
  executor_->on_step = [&] {
    while (executor_->num_steps > 5 && !go) std::this_thread::sleep_for(milliseconds(1));
  };
  const std::string ends = session(alice_.text), other = sampler_of(session(alice_.text));
  const Response sampled = sample(sampler_of(ends), 0, 50);
  for (int i = 0; i < 10000 && executor_->num_steps < 6; ++i)
    std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(post("/api/v1/sessions/" + ends + "/finish", JsonObject{}, alice_.text).status, 200);
  go = true;  // the sixth step is its last
  EXPECT_NE(failure(sampled, alice_.text).body.find("this sample was cancelled"),
            std::string::npos);
  const auto generated = [&]() -> Json {
    for (const Json& line : usage())
      if (line.as_object().at("run") == Json(ends)) return line.as_object().at("generated_tokens");
    return nullptr;
  };
  EXPECT_EQ(generated(), Json(6));
  const Response held = sample(other, 0);
  EXPECT_FALSE(core_->held_by(text(held, "request_id")).empty());
  restart();
  EXPECT_EQ(generated(), Json(6));
}

TEST_F(UsageTest, WhatIsHeldOutlivesTheServerAndChangesNoBit) {
  limit([](store::Quota& q) { q.tokens_per_minute = 1; });
  const std::string run = this->run(alice_.text);
  EXPECT_EQ(result(train_three(run, 1), alice_.text).status, 200);
  const Response held = train_three(run, 2), stepped = step_of(run, 3);
  EXPECT_EQ(stepped.status, 200);
  restart();
  EXPECT_EQ(result(held, alice_.text).status, 200);  // a minute's worth may be used again
  loop_->pass(milliseconds(121000));
  EXPECT_EQ(result(stepped, alice_.text).status, 200);
  EXPECT_EQ(done(run).size(), 3u);
  EXPECT_EQ(done(run).back(), "step");
  restart();  // and that is a state whose replay agrees
  EXPECT_TRUE(until([&] { return core_->num_again() == 0; }));
  EXPECT_EQ(done(run).size(), 3u);
}

TEST_F(UsageTest, ASaveThatARateHoldsWhenAStateIsTakenIsDoneInItsPlace) {
  options_.saving.journal_bytes = 1;
  restart();
  limit([](store::Quota& q) { q.tokens_per_minute = 1; });
  const std::string run = this->run(alice_.text);
  EXPECT_EQ(result(train_three(run, 1), alice_.text).status, 200);
  const Response held =
      post("/api/v1/save_weights", {{"model_id", run}, {"seq_id", 2}, {"path", "a"}}, alice_.text);
  const Response stepped = step_of(run, 3);
  ASSERT_TRUE(compact());
  EXPECT_FALSE(is_there(dir_ / "checkpoints" / run / "weights" / "a"));
  restart();  // a minute's worth may be used again
  EXPECT_EQ(text(result(held, alice_.text), "path"), "tinker://" + run + "/weights/a");
  EXPECT_EQ(result(stepped, alice_.text).status, 200);
  EXPECT_EQ(done(run).size(), 2u);
  const Response loaded = post("/api/v1/load_weights",
                               {{"session_id", session(alice_.text)},
                                {"model_seq_id", 0},
                                {"path", "tinker://" + run + "/weights/a"}},
                               alice_.text);
  EXPECT_EQ(done(text(result(loaded, alice_.text), "model_id")).size(), 1u) << "without the step";
}

TEST_F(UsageTest, WhatIsHeldAndWhatWasUsedAreInAStateThatTakesThePlaceOfRecords) {
  options_.saving.journal_bytes = 1;
  restart();
  limit([](store::Quota& q) { q.tokens_per_minute = 1; });
  const std::string run = this->run(alice_.text);
  EXPECT_EQ(result(train_three(run, 1), alice_.text).status, 200);
  const Response held = train_three(run, 2), stepped = step_of(run, 3);
  ASSERT_TRUE(compact());
  EXPECT_EQ(executor_->num_batches, 1);
  restart();
  EXPECT_EQ(result(held, alice_.text).status, 200);
  loop_->pass(milliseconds(121000));
  EXPECT_EQ(result(stepped, alice_.text).status, 200);
  EXPECT_EQ(done(run).size(), 3u);
  const JsonObject line = usage().at(0).as_object();
  EXPECT_EQ(line.at("requests"), 4);
  EXPECT_EQ(line.at("trained_tokens"), 6);
  EXPECT_EQ(line.at("key"), Json(alice_.key.id));
}

TEST_F(UsageTest, UsageIsToldByKeyAndRunAndOutlivesTheServer) {
  executor_->clock = [this] { return seconds_ += 0.25; };
  const std::string run = this->run(alice_.text);
  EXPECT_EQ(result(train_three(run, 1), alice_.text).status, 200);
  EXPECT_EQ(result(step_of(run, 2), alice_.text).status, 200);
  const JsonArray before = usage();
  ASSERT_EQ(before.size(), 1u);
  const JsonObject& line = before[0].as_object();
  EXPECT_EQ(line.at("tenant"), "alice");
  EXPECT_EQ(line.at("key"), Json(alice_.key.id));
  EXPECT_EQ(line.at("run"), Json(run));
  EXPECT_EQ(line.at("requests"), 3);
  EXPECT_EQ(line.at("trained_tokens"), 3);
  const double seconds = line.at("compute_seconds").as_double();
  EXPECT_GE(seconds, 0.5);
  Request usage_again = request("/api/v1/usage", "", reader_);
  usage_again.method = "GET";
  std::ostringstream plainly;  // quarters: a few digits
  plainly << seconds << (seconds == std::trunc(seconds) ? ".0" : "");
  const std::string body = answer(usage_again).body;
  EXPECT_NE(body.find("\"compute_seconds\":" + plainly.str() + "}"), std::string::npos) << body;
  restart();
  EXPECT_EQ(usage(), before);
  Request metrics = request("/metrics", "", reader_);
  metrics.method = "GET";
  const std::string told = answer(metrics).body;
  for (const char* part :
       {"twinkle_tenant_requests_total{tenant=\"alice\"} 3\n",
        "twinkle_tenant_tokens_total{tenant=\"alice\",kind=\"trained\"} 3\n",
        "twinkle_tenant_compute_seconds_total{tenant=\"alice\"} ", "twinkle_requests_held 0\n"})
    EXPECT_NE(told.find(part), std::string::npos) << part << told;
}

}  // namespace
}  // namespace twinkle::server
