// What a tenant has used, and what its rates hold, in the service.
#include "twinkle/server/tenants/usage.h"

#include <cmath>
#include <sstream>

#include "twinkle/base/file.h"
#include "twinkle/server/service_for_test.h"

namespace twinkle::server {
namespace {

using std::chrono::milliseconds;

TEST(Usage, IsKeptByTenantKeyAndRunAndSummedByTenant) {
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

class TenantsTest : public ServiceTest {
 protected:
  TenantsTest() { admit(); }
  void admit() { ask_for_keys(keys_); }
  void limit(const store::ChangeQuota& change) {
    keys_.limit("alice", change);
    see_keys();
  }
  void restart() {
    open();
    admit();
    go_on();
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
  // Of four tokens; whatever max_tokens says, the null model generates three.
  Response sample(const std::string& sampler, int64_t seq_id, int64_t max_tokens = 3) {
    const Json body = {{"sampling_session_id", sampler},
                       {"seq_id", seq_id},
                       {"prompt", {{"chunks", {{{"tokens", {1, 2, 3, 4}}}}}}},
                       {"sampling_params", {{"max_tokens", max_tokens}}}};
    return post("/api/v1/asample", body, alice_.text);
  }
  std::shared_ptr<std::optional<Response>> poll(const Response& ack) {
    return send(request("/api/v1/retrieve_future",
                        boost::json::serialize(JsonObject{{"request_id", text(ack, "request_id")}}),
                        alice_.text));
  }
  bool has_ended(const std::shared_ptr<std::optional<Response>>& poll) {
    return loop_->run_until([&] { return poll->has_value(); }) && (*poll)->status == 200;
  }
  JsonObject asked_by(const std::string& key) {
    Request r = request("/api/v1/usage", "", key);
    r.method = "GET";
    return parse(answer(r));
  }
  JsonArray usage() { return asked_by(reader_).at("usage").as_array(); }
  std::string amounts() { return boost::json::serialize(asked_by(reader_).at("tenants")); }

  std::atomic<double> seconds_ = 0;
  const store::KeyFile keys_{dir_.path()};
  const store::KeyFile::Created alice_ =
      keys_.create({.tenant = "alice", .scopes = {"train", "sample"}});
  const std::string reader_ = keys_.create({.tenant = "op", .scopes = {"metrics"}}).text;
};

TEST_F(TenantsTest, UsageTellsWhatALimitedTenantHasNextToItsLimits) {
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

TEST_F(TenantsTest, WhatIsBeyondARateIsTakenAndHeldAndPollsSayWhy) {
  go_on();
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
  EXPECT_EQ(services_->rates.reason(run + ":3"),
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

TEST_F(TenantsTest, AHeldRequestsPollEndsWith408AndItsPlace) {
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
TEST_F(TenantsTest, WhatWasComputedIsPaidWhenItHasEnded) {
  executor_->clock = [this] { return seconds_ += 0.25; };
  const std::string run = this->run(alice_.text);
  limit([](store::Quota& q) { q.compute_seconds_per_minute = 0.25; });
  EXPECT_EQ(result(train_three(run, 1), alice_.text).status, 200);
  const auto polled = poll(train_three(run, 2));
  const std::string why = services_->rates.reason(run + ":2");
  EXPECT_TRUE(
      why.starts_with("this tenant's limit of 0.25 seconds of computing a minute: "
                      "position 1 of 1, about "))
      << why;
  EXPECT_EQ(executor_->num_batches, 1);
  limit([](store::Quota& q) { q.compute_seconds_per_minute = 0; });
  loop_->pass(milliseconds(1100));
  EXPECT_TRUE(has_ended(polled));
}

TEST_F(TenantsTest, WhatWasGeneratedIsPaidWhenItHasEndedAndIsUsage) {
  limit([](store::Quota& q) { q.tokens_per_minute = 5; });
  const std::string session = this->session(alice_.text), sampler = sampler_of(session);
  result(sample(sampler, 0), alice_.text);  // of the 5, 1 was left before it generated
  const Response held = sample(sampler, 1);
  const std::string why = services_->rates.reason(text(held, "request_id"));
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

TEST_F(TenantsTest, SamplesOfASessionThatEndedAreHeldNoMore) {
  limit([](store::Quota& q) { q.tokens_per_minute = 1; });
  const std::string ends = session(alice_.text), stays = session(alice_.text);
  const std::string mine = sampler_of(ends), others = sampler_of(stays);
  result(sample(mine, 0), alice_.text);  // owes its tokens now
  const std::vector<Response> held{sample(mine, 1), sample(mine, 2)};
  const Response stays_held = sample(others, 0);
  EXPECT_EQ(services_->rates.num_held(), 3);
  EXPECT_EQ(post("/api/v1/sessions/" + ends + "/finish", JsonObject{}, alice_.text).status, 200);
  for (const Response& ack : held)
    EXPECT_NE(failure(ack, alice_.text).body.find("this sample was cancelled"), std::string::npos);
  EXPECT_EQ(services_->operations.num_waiting(), 1);
  const auto line_of_those = usage().at(0).as_object();
  EXPECT_EQ(line_of_those.at("run"), Json(ends));
  EXPECT_EQ(line_of_those.at("requests"), 3);
  EXPECT_EQ(line_of_those.at("prompt_tokens"), 4) << "of the one that was sampled";
  const std::string why = services_->rates.reason(text(stays_held, "request_id"));
  EXPECT_NE(why.find("position 1 of 1"), std::string::npos) << why;
}

TEST_F(TenantsTest, WhatACancelledSampleHadGeneratedIsPaidAndIsUsageAfterAStartToo) {
  go_on();
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
  EXPECT_FALSE(services_->rates.reason(text(held, "request_id")).empty());
  restart();
  EXPECT_EQ(generated(), Json(6));
}

TEST_F(TenantsTest, WhatIsHeldOutlivesTheServerAndChangesNoBit) {
  go_on();
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
  EXPECT_EQ(done(run).size(), 3u);
}

TEST_F(TenantsTest, ASaveThatARateHoldsWhenAStateIsTakenIsDoneInItsPlace) {
  options_.truncation.journal_bytes = 1;
  restart();
  limit([](store::Quota& q) { q.tokens_per_minute = 1; });
  const std::string run = this->run(alice_.text);
  EXPECT_EQ(result(train_three(run, 1), alice_.text).status, 200);
  const Response held =
      post("/api/v1/save_weights", {{"model_id", run}, {"seq_id", 2}, {"path", "a"}}, alice_.text);
  const Response stepped = step_of(run, 3);
  ASSERT_TRUE(truncate(alice_.text));
  EXPECT_EQ(num_carried(), 2);
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

TEST_F(TenantsTest, WhatIsHeldAndWhatWasUsedAreInAStateThatTakesThePlaceOfRecords) {
  options_.truncation.journal_bytes = 1;
  restart();
  limit([](store::Quota& q) { q.tokens_per_minute = 1; });
  const std::string run = this->run(alice_.text);
  EXPECT_EQ(result(train_three(run, 1), alice_.text).status, 200);
  const Response held = train_three(run, 2), stepped = step_of(run, 3);
  ASSERT_TRUE(truncate(alice_.text));
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

TEST_F(TenantsTest, UsageIsToldByKeyAndRunAndOutlivesTheServer) {
  go_on();
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

TEST_F(TenantsTest, AKeyWithoutTheScopeMetricsIsToldItsOwnTenantsUseAlone) {
  const std::string bobs = keys_.create({.tenant = "bob", .scopes = {"train"}}).text;
  const std::string new_ones = keys_.create({.tenant = "carol", .scopes = {"sample"}}).text;
  limit([](store::Quota& q) { q.max_runs = 3; });
  keys_.limit("bob", [](store::Quota& q) { q.max_runs = 4; });
  see_keys();
  const std::string alices_run = run(alice_.text), bobs_run = run(bobs);
  ASSERT_EQ(usage().size(), 2u) << "the operator sees both";
  for (const auto& [key, tenant, run] :
       {std::tuple(alice_.text, "alice", alices_run), std::tuple(bobs, "bob", bobs_run)}) {
    const JsonObject told = asked_by(key);
    ASSERT_EQ(told.at("usage").as_array().size(), 1u) << tenant;
    EXPECT_EQ(told.at("usage").as_array()[0].at("tenant"), Json(tenant));
    EXPECT_EQ(told.at("usage").as_array()[0].at("run"), Json(run));
    ASSERT_EQ(told.at("tenants").as_array().size(), 1u) << tenant;
    EXPECT_EQ(told.at("tenants").as_array()[0].at("tenant"), Json(tenant));
  }
  EXPECT_EQ(asked_by(new_ones), (JsonObject{{"usage", JsonArray{}}, {"tenants", JsonArray{}}}));
  Request unknown = request("/api/v1/usage", "", "tml-nobody");
  unknown.method = "GET";
  EXPECT_EQ(answer(unknown).status, 401);
}

// A count goes through all runs: for as many tenants that takes the square of their number.
TEST_F(TenantsTest, WhatTenantsWithoutLimitsHaveIsNotCounted) {
  constexpr int kTenants = 2000;
  std::vector<std::string> owners;
  for (int i = 0; i < kTenants; ++i) {
    twinkle::server::Run of;
    of.id = of.owner = std::string("tenant").append(std::to_string(i));
    of.is_made = true;
    owners.push_back(of.owner);
    services_->runs.add(std::move(of));
  }
  const auto shortest = [](const auto& work) {
    auto out = std::chrono::steady_clock::duration::max();
    for (int i = 0; i < 3; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      work();
      out = std::min(out, std::chrono::steady_clock::now() - begin);
    }
    return out;
  };
  const auto one_count_of_each = shortest([&] {
    for (const std::string& owner : owners)
      EXPECT_EQ(services_->amounts.num_runs(*services_, owner), 1);
  });
  const std::string key = keys_.create({.tenant = "operator", .scopes = {"metrics"}}).text;
  see_keys();
  const auto asked = shortest([&] {
    Request get = request("/api/v1/usage", "", key);
    get.method = "GET";
    const Response told = answer(std::move(get));
    EXPECT_EQ(told.status, 200);
    EXPECT_NE(told.body.find("\"tenants\":[]"), std::string::npos);
  });
  EXPECT_LT(asked, one_count_of_each / 2);
}

}  // namespace
}  // namespace twinkle::server
