// What a tenant's limits by amount refuse, and that a start refuses the same.
#include "twinkle/server/tenants/amounts.h"

#include <future>
#include <new>

#include "twinkle/engine/heap_shortage_for_test.h"
#include "twinkle/io/atomic.h"
#include "twinkle/server/service_for_test.h"

namespace twinkle::server {
namespace {

class AmountsTest : public ServiceTest {
 protected:
  AmountsTest() { admit(); }
  void admit() { ask_for_keys(keys_); }
  void limit(const store::ChangeQuota& change) {
    keys_.limit("alice", change);
    see_keys();
  }
  std::string make(const store::Standing& standing) {
    const auto made =
        keys_.create({.tenant = "alice", .scopes = {"train", "sample"}}, {}, standing);
    see_keys();
    return made.text;
  }
  void restart() {
    open();
    admit();
    if (weighs_) weigh();
    go_on();
  }
  // From here on adapters of rank 8 have 8000 numbers.
  void weigh() {
    weighs_ = true;
    backend_->facts.adapter_sizes = {{"q_proj", {1000, 1}}};
  }
  int64_t coming() { return services_->amounts.num_coming_bytes(*services_, "alice"); }
  void finish(const std::string& session) {
    EXPECT_EQ(post("/api/v1/sessions/" + session + "/finish", JsonObject{}, key_).status, 200);
  }
  Response step_of(const std::string& run, int64_t seq_id) {
    return post("/api/v1/optim_step",
                {{"model_id", run}, {"seq_id", seq_id}, {"adam_params", {{"learning_rate", 0.1}}}},
                key_);
  }
  Response create(const std::string& session, int64_t number = 0) {
    JsonObject body = model(session).as_object();
    body["model_seq_id"] = number;
    return post("/api/v1/create_model", body, key_);
  }
  Response save(const std::string& route, const std::string& run, int64_t seq_id,
                const std::string& name = "") {
    JsonObject body{{"model_id", run}, {"seq_id", seq_id}};
    if (!name.empty()) body["path"] = name;
    return post("/api/v1/" + route, body, key_);
  }
  static std::string detail(const Response& response) {
    EXPECT_EQ(response.status, 422) << response.body;
    return text(response, "detail");
  }

  const store::KeyFile keys_{dir_.path()};
  const std::string key_ = keys_.create({.tenant = "alice", .scopes = {"train", "sample"}}).text;
  bool weighs_ = false;
};

// Of weigh()'s adapters, in bytes with those of headers.
constexpr int64_t kHeaders = (64 << 10) + 2048;
constexpr int64_t kCheckpointBytes = 96000 + kHeaders, kForSamplersBytes = 32000 + kHeaders;

// Where this session has the run.
std::string one_run(const std::string& session) {
  return "server: this tenant has 1 runs, its limit is 1; finish a session whose runs are done "
         "(ServiceClient.close(\"success\"), or, of a client that has gone, POST "
         "/api/v1/sessions/" +
         session + "/finish), or ask the operator for a higher limit";
}

TEST_F(AmountsTest, OneRunTooManyIsRefusedUntilASessionIsFinished) {
  limit([](store::Quota& q) { q.max_runs = 1; });
  const std::string first = session(key_), second = session(key_), third = session(key_);
  EXPECT_EQ(create(first).status, 200);
  EXPECT_EQ(detail(create(first, 1)), one_run(first));
  EXPECT_EQ(detail(create(second)), one_run(first));
  EXPECT_EQ(create(first).status, 200);  // what was accepted is known
  const Response saved = result(save("save_weights", first + ":train:0", 1, "a"), key_);
  const auto load = [&](const std::string& session, int64_t number) {
    return post("/api/v1/load_weights",
                {{"session_id", session}, {"model_seq_id", number}, {"path", text(saved, "path")}},
                key_);
  };
  EXPECT_EQ(detail(load(second, 1)), one_run(first));
  EXPECT_EQ(post("/api/v1/sessions/" + first + "/finish", JsonObject{}, key_).status, 200);
  EXPECT_EQ(create(second).status, 200);
  EXPECT_NE(detail(save("save_weights", first + ":train:0", 2, "b")).find("has finished"),
            std::string::npos);
  EXPECT_NE(detail(create(first, 2)).find("has finished"), std::string::npos);
  EXPECT_EQ(post("/api/v1/sessions/" + second + "/finish", JsonObject{}, key_).status, 200);
  EXPECT_EQ(load(third, 0).status, 200);
  EXPECT_EQ(detail(create(third, 1)), one_run(third)) << "one that was loaded is a run";
}

TEST_F(AmountsTest, ARunThatMayNotFitInMemoryIsRefusedAndAStartWithLessTakesThoseThereAre) {
  weigh();
  restart();
  backend_->parked.limit = 16 * 8000 - 1;  // weights, gradients and two moments, 4 bytes each
  const std::string s = session(key_);
  EXPECT_EQ(detail(create(s)),
            "server: lora_config.rank is 8, with which a run takes up to 128000 bytes of memory, "
            "resident_bytes is 127999 for all runs; ask for a lower rank or fewer modules, or ask "
            "the operator to raise it");
  backend_->parked.limit = 16 * 8000;
  const std::string run = text(result(create(s), key_), "model_id");
  const std::string path = text(result(save("save_weights", run, 1, "a"), key_), "path");
  open();
  admit();
  weigh();
  backend_->parked.limit = 1000;
  go_on();
  EXPECT_EQ(result(step_of(run, 2), key_).status, 200);
  const Json load{{"session_id", s}, {"model_seq_id", 2}, {"path", path}};
  EXPECT_NE(detail(post("/api/v1/load_weights", load, key_)).find("resident_bytes is 1000"),
            std::string::npos);
}

TEST_F(AmountsTest, ARunWhoseMakingHasFailedIsNone) {
  go_on();
  limit([](store::Quota& q) { q.max_runs = 2; });
  const std::string s = session(key_), run = text(result(create(s), key_), "model_id");
  const std::string path = text(result(save("save_weights", run, 1, "a"), key_), "path");
  const auto load = [&](int64_t number) {
    return post("/api/v1/load_weights",
                {{"session_id", s}, {"model_seq_id", number}, {"path", path}}, key_);
  };
  backend_->on_check = [](const engine::Operation& operation) {
    const auto* made = std::get_if<engine::Create>(&operation);
    if (made && !made->directory.empty()) fail(Code::kInvalid, "its folder is gone");
  };
  EXPECT_NE(failure(load(1), key_).body.find("its folder is gone"), std::string::npos);
  backend_->on_check = nullptr;
  EXPECT_EQ(services_->amounts.num_runs(*services_, "alice"), 1);
  EXPECT_EQ(result(load(2), key_).status, 200);
  EXPECT_NE(detail(load(3)).find("has 2 runs"), std::string::npos);
  restart();
  EXPECT_EQ(services_->amounts.num_runs(*services_, "alice"), 2);
}

TEST_F(AmountsTest, ARunThatWasMadeAndNotLoadedIsNone) {
  options_.truncation.journal_bytes = 1;
  restart();
  const std::string s = session(key_), run = text(result(create(s), key_), "model_id");
  const std::string path = text(result(save("save_weights", run, 1, "a"), key_), "path");
  backend_->on_check = [](const engine::Operation& operation) {
    if (std::holds_alternative<engine::Load>(operation)) fail(Code::kInvalid, "no optimizer");
  };
  const Json body = {{"session_id", s}, {"model_seq_id", 1}, {"path", path}, {"optimizer", true}};
  EXPECT_NE(failure(post("/api/v1/load_weights", body, key_), key_).body.find("no optimizer"),
            std::string::npos);
  backend_->on_check = nullptr;
  EXPECT_EQ(services_->amounts.num_runs(*services_, "alice"), 1);
  for (int i = 0; i < 2; ++i) {  // from the records' state, and from the state's
    ASSERT_TRUE(truncate(key_));
    restart();
    EXPECT_EQ(services_->amounts.num_runs(*services_, "alice"), 1);
    EXPECT_EQ(services_->runs.all().size(), 2u);
    EXPECT_NE(detail(step_of(s + ":train:1", i + 1)).find("could not be loaded"),
              std::string::npos);
  }
}

TEST_F(AmountsTest, TheSessionWhoseRunsHaveHadNoRequestForLongestIsNamed) {
  const std::string a = session(key_), b = session(key_);
  const auto made = [&](const std::string& in, int64_t number, int64_t last_ms) {
    const std::string run = text(result(create(in, number), key_), "model_id");
    services_->runs.find(run)->last_ms = last_ms;
  };
  made(a, 0, 1), made(b, 0, 2), made(a, 1, 3);
  limit([](store::Quota& q) { q.max_runs = 3; });
  EXPECT_NE(detail(create(b, 1)).find("/sessions/" + b + "/finish"), std::string::npos);
}

TEST_F(AmountsTest, WhatIsSavedWhileItsRunIsMeasuredCountsOnce) {
  limit([](store::Quota& q) { q.max_disk = 1 << 20; });
  const std::string run = text(result(create(session(key_)), key_), "model_id");
  const auto folder = dir_ / "checkpoints" / run / "weights" / "a";
  const auto measured = [&] { return services_->amounts.num_bytes(*services_, "alice"); };
  bool is_over = false;
  const auto measure = [&] {
    services_->amounts.measure(*services_, "alice", Amount::kCheckpoint, [&] { is_over = true; });
  };
  std::promise<void> goes;
  services_->disk.run([goes = goes.get_future().share()] { goes.wait(); });
  measure();
  std::filesystem::create_directories(folder);
  write_text(folder / "file", std::string(500, 'x'));
  services_->amounts.changed(run, folder, 1000);
  EXPECT_EQ(coming(), 1000);
  goes.set_value();
  EXPECT_TRUE(loop_->run_until([&] { return is_over; }));
  EXPECT_EQ(measured(), 500);
  EXPECT_EQ(coming(), 0);
  write_text(folder / "file", std::string(700, 'x'));
  is_over = false;
  measure();
  EXPECT_TRUE(loop_->run_until([&] { return is_over; }));
  EXPECT_EQ(measured(), 700) << "as it was by then";
}

TEST_F(AmountsTest, OfTwoThatComeAtOnceOneIsRefused) {
  go_on();
  limit([](store::Quota& q) { q.max_runs = 1; });
  const std::string first = session(key_), second = session(key_);
  const auto request_of = [&](const std::string& s) {
    return request("/api/v1/create_model", boost::json::serialize(model(s)), key_);
  };
  const auto a = send(request_of(first)), b = send(request_of(second));
  EXPECT_TRUE(loop_->run_until([&] { return a->has_value() && b->has_value(); }));
  EXPECT_EQ((*a)->status, 200);
  EXPECT_NE(detail(**b).find("this tenant has 1 runs, its limit is 1;"), std::string::npos);
}

TEST_F(AmountsTest, ARefusalIsOneAfterARestartWithOtherLimitsAndSoIsWhatWasTaken) {
  go_on();
  const std::string s = session(key_);
  limit([](store::Quota& q) { q.max_runs = 1; });
  const std::string run = text(result(create(s), key_), "model_id");
  EXPECT_EQ(detail(create(s, 1)), one_run(s));
  limit([](store::Quota& q) { q.max_adapters = 1; });
  EXPECT_EQ(result(save("save_weights_for_sampler", run, 1, "a"), key_).status, 200);
  EXPECT_EQ(detail(save("save_weights_for_sampler", run, 2, "b")),
            "server: this tenant has 1 adapters that are kept to be sampled, its limit is 1; they "
            "are never given back, nor are those of sessions that have finished: ask the operator "
            "for a higher limit");
  limit([](store::Quota& q) { q.max_adapters = q.max_runs = 0; });
  restart();
  EXPECT_EQ(services_->sessions.at(s).runs.size(), 1u);
  EXPECT_EQ(services_->checkpoints.size(), 1u);
  EXPECT_NE(detail(save("save_weights_for_sampler", run, 2, "b")).find("was refused"),
            std::string::npos);
  EXPECT_EQ(result(save("save_weights_for_sampler", run, 3, "c"), key_).status, 200);
  EXPECT_EQ(create(s, 2).status, 200);
  limit([](store::Quota& q) { q.max_adapters = q.max_runs = 1; });
  restart();
  EXPECT_EQ(services_->checkpoints.size(), 2u);
  EXPECT_EQ(services_->sessions.at(s).runs.size(), 2u);
}

TEST_F(AmountsTest, WhatIsCountedAndWhatWasRefusedAreInAStateThatTakesThePlaceOfRecords) {
  options_.truncation.journal_bytes = 1;
  restart();
  limit([](store::Quota& q) { q.max_runs = 1, q.max_adapters = 2; });
  const std::string s = session(key_);
  const std::string run = text(result(create(s), key_), "model_id");
  EXPECT_EQ(detail(create(s, 1)), one_run(s));
  EXPECT_EQ(result(save("save_weights_for_sampler", run, 1, "a"), key_).status, 200);
  EXPECT_EQ(result(save("save_weights_for_sampler", run, 2), key_).status, 200);
  EXPECT_NE(detail(save("save_weights_for_sampler", run, 3, "b")).find("has 2 adapters"),
            std::string::npos);
  for (int i = 0; i < 2; ++i) {  // from the records' state, and from the state's
    ASSERT_TRUE(truncate(key_));
    limit([](store::Quota& q) { q.max_runs = q.max_adapters = 0; });
    restart();
    EXPECT_EQ(services_->amounts.num_runs(*services_, "alice"), 1);
    EXPECT_EQ(services_->amounts.num_adapters(*services_, "alice"), 2);
    EXPECT_EQ(services_->sessions.at(s).runs.size(), 1u);
    EXPECT_NE(detail(save("save_weights_for_sampler", run, 3, "b")).find("was refused"),
              std::string::npos);
  }
  EXPECT_EQ(result(save("save_weights_for_sampler", run, 4, "c"), key_).status, 200);
  limit([](store::Quota& q) { q.max_runs = 1, q.max_adapters = 3; });
  EXPECT_NE(detail(save("save_weights_for_sampler", run, 5)).find("has 3 adapters"),
            std::string::npos);
  EXPECT_EQ(post("/api/v1/sessions/" + s + "/finish", JsonObject{}, key_).status, 200);
  ASSERT_TRUE(truncate(key_));
  restart();
  EXPECT_EQ(services_->amounts.num_runs(*services_, "alice"), 0);
  EXPECT_EQ(services_->amounts.num_adapters(*services_, "alice"), 3) << "its session is over";
  EXPECT_EQ(create(session(key_)).status, 200);
}

TEST_F(AmountsTest, AdaptersAreNamedOnesAndPublishedOnesAndThoseThatAreBeingMade) {
  limit([](store::Quota& q) { q.max_adapters = 2; });
  const std::string run = text(result(create(session(key_)), key_), "model_id");
  EXPECT_EQ(save("save_weights_for_sampler", run, 1, "a").status, 200);
  EXPECT_EQ(save("save_weights_for_sampler", run, 2).status, 200);
  EXPECT_NE(detail(save("save_weights_for_sampler", run, 3))
                .find("has 2 adapters that are kept to be sampled, its limit is 2; they are never "
                      "given back"),
            std::string::npos);
  const Response last = save("save_weights", run, 4, "b");  // is none, and need not wait for 3
  EXPECT_EQ(result(last, key_).status, 200);
  EXPECT_EQ(services_->amounts.num_adapters(*services_, "alice"), 2);
}

TEST_F(AmountsTest, VersionsOfFinishedSessionsAreAdaptersForTheirSamplersGoOn) {
  go_on();
  limit([](store::Quota& q) { q.max_adapters = 2; });
  std::vector<std::string> samplers;
  for (int64_t i = 0; i < 2; ++i) {
    const std::string s = session(key_), run = text(result(create(s), key_), "model_id");
    const Response saved = result(save("save_weights_for_sampler", run, 1), key_);
    samplers.push_back(text(saved, "sampling_session_id"));
    finish(s);
  }
  const std::string run = text(result(create(session(key_)), key_), "model_id");
  EXPECT_NE(detail(save("save_weights_for_sampler", run, 1)).find("has 2 adapters"),
            std::string::npos);
  for (const std::string& sampler : samplers) {
    const Json sample = {{"sampling_session_id", sampler},
                         {"seq_id", 0},
                         {"prompt", {{"chunks", JsonArray{JsonObject{{"tokens", {1, 2}}}}}}},
                         {"sampling_params", {{"max_tokens", 3}}}};
    EXPECT_EQ(result(post("/api/v1/asample", sample, key_), key_).status, 200);
  }
  limit([](store::Quota& q) { q.max_adapters = 3; });  // the remedy
  EXPECT_EQ(result(save("save_weights_for_sampler", run, 2), key_).status, 200);
}

TEST_F(AmountsTest, WhoHasTooManyBytesOnDiskSavesNoMore) {
  limit([](store::Quota& q) { q.max_disk = 1000; });
  const std::string run = text(result(create(session(key_)), key_), "model_id");
  EXPECT_EQ(result(save("save_weights", run, 1, "a"), key_).status, 200);
  const auto folder = dir_ / "checkpoints" / run / "weights" / "a";
  std::filesystem::create_directories(folder);
  write_text(folder / "adapter_model.safetensors", std::string(1001, 'x'));
  for (const char* route : {"save_weights", "save_weights_for_sampler"})
    EXPECT_EQ(
        detail(save(route, run, route == std::string("save_weights") ? 2 : 3, "c")),
        "server: this tenant has 1001 bytes of checkpoints and snapshots, its limit is 1000; "
        "ask the operator for a higher limit, or to remove checkpoints, which counts from the next "
        "start of the server");
  limit([](store::Quota& q) { q.max_disk = 5000; });
  EXPECT_EQ(result(save("save_weights", run, 4, "d"), key_).status, 200);
}

TEST_F(AmountsTest, SavesThatWaitFillTheQuotaAndGiveItBackWhenTheyHaveEnded) {
  weigh();
  const std::string s = session(key_), run = text(result(create(s), key_), "model_id");
  EXPECT_EQ(coming(), 0);
  constexpr int64_t kAll = 2 * kCheckpointBytes + kForSamplersBytes;
  limit([](store::Quota& q) { q.max_disk = kAll; });
  std::vector<Response> waits;  // for 1
  for (int64_t seq_id = 2; seq_id <= 3; ++seq_id)
    waits.push_back(save("save_weights", run, seq_id, std::to_string(seq_id)));
  waits.push_back(save("save_weights_for_sampler", run, 4, "s"));
  EXPECT_EQ(coming(), kAll);
  const std::string why =
      "server: this tenant has 0 bytes of checkpoints and snapshots, and saves that have not ended "
      "may add 426752, its limit is 426752; wait until they have ended, send the requests before "
      "them that have not come, or ask the operator for a higher limit";
  EXPECT_EQ(detail(save("save_weights", run, 5, "b")), why);
  EXPECT_EQ(detail(save("save_weights_for_sampler", run, 6)), why);
  EXPECT_EQ(detail(create(s, 1)), why);
  EXPECT_EQ(coming(), kAll) << "what is refused adds nothing";
  EXPECT_EQ(result(step_of(run, 1), key_).status, 200);
  for (const Response& ack : waits) EXPECT_EQ(result(ack, key_).status, 200);
  const Response last = save("save_weights", run, 8, "c");  // behind 7, which does not come
  EXPECT_EQ(last.status, 200) << last.body;
  EXPECT_EQ(coming(), kCheckpointBytes) << "what has ended is measured";
  EXPECT_GT(services_->amounts.num_bytes(*services_, "alice"), 0);
  finish(s);
  EXPECT_EQ(failure(last, key_).status, 200);
  EXPECT_EQ(coming(), 0);
}

TEST_F(AmountsTest, ASaveTakesWhatItsRunTrains) {
  ModelFacts facts;
  facts.carried_bytes = 10;
  facts.adapter_sizes = {{"q_proj", {100, 2}},
                         {"down_proj", {1000, 3}},
                         {"lm_head", {7, 1}},
                         {"in_proj", {5000, 9}}};  // which no group has
  server::Run run{.rank = 2};
  EXPECT_EQ(most_bytes(facts, run, false), (64 << 10) + 10 + 4 * 2 * 1107 + 6 * 2048);
  run.trains = {{"train_attn", true}, {"train_mlp", false}, {"train_unembed", true}};
  EXPECT_EQ(most_bytes(facts, run, true), (64 << 10) + 10 + 12 * 2 * 107 + 3 * 2048);
}

TEST_F(AmountsTest, WhoHasTooManyBytesOnDiskMakesNoRuns) {
  options_.snapshots.every = std::chrono::milliseconds(0);
  restart();
  const std::string s = session(key_), run = text(result(create(s), key_), "model_id");
  const std::string path = text(result(save("save_weights", run, 1, "a"), key_), "path");
  EXPECT_EQ(result(step_of(run, 2), key_).status, 200);
  EXPECT_TRUE(loop_->run_until([&] { return services_->snapshots.saving(run) < 0; }));
  write_text(dir_ / "snapshots" / run / "2" / "more", std::string(1000, 'x'));
  finish(s);
  limit([](store::Quota& q) { q.max_disk = 1000; });
  const std::string other = session(key_);
  const Json load = {{"session_id", other}, {"model_seq_id", 1}, {"path", path}};
  const std::string why = "its limit is 1000; ask the operator for a higher limit";
  EXPECT_NE(detail(create(other)).find(why), std::string::npos);
  EXPECT_NE(detail(post("/api/v1/load_weights", load, key_)).find(why), std::string::npos);
  EXPECT_EQ(services_->runs.all().size(), 1u);
  limit([](store::Quota& q) { q.max_disk = 100000; });
  EXPECT_EQ(create(other).status, 200);
  EXPECT_EQ(result(post("/api/v1/load_weights", load, key_), key_).status, 200);
}

TEST_F(AmountsTest, ASaveMeasuresItsOwnFolderAndNotAllThatItsRunHas) {
  options_.snapshots.every = std::chrono::milliseconds(0);
  restart();
  limit([](store::Quota& q) { q.max_disk = 1 << 20; });
  const std::string run = text(result(create(session(key_)), key_), "model_id");
  const auto weights = dir_ / "checkpoints" / run / "weights";
  const auto save_with = [&](int64_t seq_id, const std::string& name, size_t bytes) {
    EXPECT_EQ(result(save("save_weights", run, seq_id, name), key_).status, 200);
    write_text(weights / name / "more", std::string(bytes, 'x'));
  };
  const auto measured = [&] { return services_->amounts.num_bytes(*services_, "alice"); };
  save_with(1, "a", 1000);
  save_with(2, "b", 100);  // which measures a
  EXPECT_EQ(measured(), 1000);
  write_text(weights / "a/more", std::string(5000, 'x'));
  save_with(3, "c", 10);
  EXPECT_EQ(measured(), 1100) << "a was measured before";
  const Json step = {{"model_id", run}, {"seq_id", 4}, {"adam_params", {{"learning_rate", 0.1}}}};
  EXPECT_EQ(result(post("/api/v1/optim_step", step, key_), key_).status, 200);
  EXPECT_TRUE(loop_->run_until([&] { return services_->snapshots.saving(run) < 0; }));
  const auto snapshot = dir_ / "snapshots" / run / "4";
  write_text(snapshot / "more", std::string(20000, 'x'));
  const int64_t of_step = std::ssize(read_text(snapshot / "null"));
  save_with(5, "d", 0);
  EXPECT_EQ(measured(), 1110 + 20000 + of_step);
  restart();
  save_with(6, "e", 0);
  const int64_t d = std::ssize(read_text(weights / "d/null"));
  EXPECT_EQ(measured(), 5110 + 20000 + of_step + d) << "all once after a start";
}

TEST_F(AmountsTest, SavesThatComeAtOnceAreMeasuredAndEnd) {
  go_on();
  limit([](store::Quota& q) { q.max_disk = 1 << 20; });
  const std::string run = text(result(create(session(key_)), key_), "model_id");
  std::vector<std::shared_ptr<std::optional<Response>>> sent;
  for (int64_t round = 0; round < 3; ++round) {
    for (int64_t i = 1; i <= 8; ++i) {
      const int64_t seq_id = 8 * round + i;
      const std::string body = boost::json::serialize(
          Json{{"model_id", run}, {"seq_id", seq_id}, {"path", std::to_string(seq_id)}});
      sent.push_back(send(request("/api/v1/save_weights", body, key_)));
    }
    ASSERT_TRUE(loop_->run_until(
        [&] { return std::ranges::all_of(sent, [](const auto& s) { return s->has_value(); }); }));
    for (const auto& response : sent) EXPECT_EQ(result(**response, key_).status, 200);
  }
  EXPECT_EQ(result(save("save_weights", run, 25, "last"), key_).status, 200);
  const int64_t each = std::ssize(read_text(dir_ / "checkpoints" / run / "weights/1/null"));
  EXPECT_EQ(services_->amounts.num_bytes(*services_, "alice"), 24 * each);
}

TEST_F(AmountsTest, WhatIsBeingSavedAtTheFirstMeasurementDoesNotCount) {
  limit([](store::Quota& q) { q.max_disk = 1 << 20; });
  const std::string run = text(result(create(session(key_)), key_), "model_id");
  const auto weights = dir_ / "checkpoints" / run / "weights";
  {
    const AtomicDirectory saving(weights / "other");
    write_text(saving.staging() / "half", std::string(5000, 'x'));
    EXPECT_EQ(result(save("save_weights", run, 1, "a"), key_).status, 200);
    EXPECT_EQ(services_->amounts.num_bytes(*services_, "alice"), 0);
  }
  EXPECT_EQ(result(save("save_weights", run, 2, "b"), key_).status, 200);
  EXPECT_EQ(services_->amounts.num_bytes(*services_, "alice"),
            std::ssize(read_text(weights / "a/null")));
}

TEST_F(AmountsTest, FoldersThatCannotBeReadAreMeasuredByTheNextSave) {
  limit([](store::Quota& q) { q.max_disk = 1 << 20; });
  const std::string run = text(result(create(session(key_)), key_), "model_id");
  const auto kind = dir_ / "checkpoints" / run / "sampler_weights";
  std::filesystem::create_directories(kind.parent_path());
  write_text(kind, "");  // no folder
  EXPECT_EQ(result(save("save_weights", run, 1, "a"), key_).status, 200);
  std::filesystem::remove(kind);
  std::filesystem::create_directories(kind / "s");
  write_text(kind / "s/adapter", std::string(3000, 'x'));
  EXPECT_EQ(result(save("save_weights", run, 2, "b"), key_).status, 200);
  const int64_t a = std::ssize(read_text(dir_ / "checkpoints" / run / "weights/a/null"));
  EXPECT_EQ(services_->amounts.num_bytes(*services_, "alice"), 3000 + a);
}

TEST_F(AmountsTest, WhatNoMemoryLetMeasureIsMeasuredByTheNextWhole) {
  limit([](store::Quota& q) { q.max_disk = 1 << 20; });
  const std::string run = text(result(create(session(key_)), key_), "model_id");
  EXPECT_EQ(result(save("save_weights", run, 1, "a"), key_).status, 200);
  const auto folder = dir_ / "checkpoints" / run / "weights/a";
  const int64_t null = std::ssize(read_text(folder / "null"));
  const auto is_over = std::make_shared<bool>();
  // Where allocation number `n` fails. False: it did.
  const auto measure = [&](int64_t n) {
    *is_over = false;
    std::function<void()> then = [is_over] { *is_over = true; };
    try {
      const engine::HeapShortage shortage(n, 1);
      services_->amounts.measure(*services_, "alice", Amount::kCheckpoint, then);
    } catch (const std::bad_alloc&) {
      return false;
    }
    EXPECT_TRUE(loop_->run_until([&] { return *is_over; })) << n;
    return true;
  };
  EXPECT_TRUE(measure(-1));
  int64_t n = 0;
  for (bool is_measured = false; !is_measured && n < 1000; ++n) {
    write_text(folder / "more", std::string(static_cast<size_t>(n), 'x'));
    services_->amounts.changed(run, folder);
    is_measured = measure(n);
    if (!is_measured) {
      ASSERT_TRUE(measure(-1)) << n;
    }
    ASSERT_EQ(services_->amounts.num_bytes(*services_, "alice"), null + n);
  }
  EXPECT_GT(n, 8);
  EXPECT_LT(n, 1000);
}

TEST_F(AmountsTest, ARunThatGoesOnFromItsSnapshotHasItsTenantsWeight) {
  options_.snapshots.every = std::chrono::milliseconds(0);
  restart();
  const std::string run = text(result(create(session(key_)), key_), "model_id");
  const Json step = {{"model_id", run}, {"seq_id", 1}, {"adam_params", {{"learning_rate", 0.1}}}};
  EXPECT_EQ(result(post("/api/v1/optim_step", step, key_), key_).status, 200);
  EXPECT_TRUE(loop_->run_until([&] { return services_->snapshots.saving(run) < 0; }));
  limit([](store::Quota& q) { q.weight = 4; });
  restart();
  EXPECT_EQ(executor_->shares.at(run).weight, 4);
}

TEST_F(AmountsTest, WeightsAndPrioritiesAreThoseOfTheTenantNow) {
  limit([](store::Quota& q) { q.weight = 2.5, q.priority = 3; });
  const engine::Create mine = services_->standing({.tenant = "t"}, "alice");
  EXPECT_EQ(mine.weight, 2.5);
  EXPECT_EQ(mine.priority, 3);
  EXPECT_EQ(services_->standing({.tenant = "t"}, "bob"), engine::Create{.tenant = "t"});
  const std::string run = text(result(create(session(key_)), key_), "model_id");
  EXPECT_EQ(executor_->shares.at(run).weight, 2.5);
  EXPECT_EQ(executor_->shares.at(run).priority, 3);
}

TEST_F(AmountsTest, ARunStandsWhereTheKeyThatMadeItDoesAfterEachKindOfStartToo) {
  const std::string own = make({.weight = 7, .priority = -2});
  options_.snapshots.every = std::chrono::milliseconds(0);
  restart();  // with a journal
  limit([](store::Quota& q) { q.weight = 3, q.priority = 1; });
  const std::string mine =
      text(result(post("/api/v1/create_model", model(session(own)), own), own), "model_id");
  const std::string tenants = text(result(create(session(key_)), key_), "model_id");
  const auto expect_standing = [&](const std::string& name) {
    EXPECT_EQ(executor_->shares.at(mine).weight, 7) << name;
    EXPECT_EQ(executor_->shares.at(mine).priority, -2) << name;
    EXPECT_EQ(executor_->shares.at(tenants).weight, 3) << name;
    EXPECT_EQ(executor_->shares.at(tenants).priority, 1) << name;
  };
  expect_standing("as they were made");
  restart();
  expect_standing("from the journal");
  // Sent with the tenant's other key: it is the run's place, and not the request's.
  const Json step = {{"model_id", mine}, {"seq_id", 1}, {"adam_params", {{"learning_rate", 0.1}}}};
  EXPECT_EQ(result(post("/api/v1/optim_step", step, key_), key_).status, 200);
  EXPECT_TRUE(loop_->run_until([&] { return services_->snapshots.saving(mine) < 0; }));
  options_.truncation.journal_bytes = 1;
  restart();
  expect_standing("from a snapshot");
  ASSERT_TRUE(truncate(key_));
  restart();
  expect_standing("from a state");
  EXPECT_EQ(services_->runs.find(mine)->key_id, keys_.read()[1].id);
}

TEST_F(AmountsTest, AVersionOfARunIsSampledWithTheWeightOfTheKeyThatMadeTheRun) {
  const std::string own = make({.weight = 7});
  options_.snapshots.every = std::chrono::milliseconds(0);
  restart();
  const std::string run =
      text(result(post("/api/v1/create_model", model(session(own)), own), own), "model_id");
  EXPECT_EQ(result(save("save_weights_for_sampler", run, 1), key_).status, 200);
  const Json step = {{"model_id", run}, {"seq_id", 2}, {"adam_params", {{"learning_rate", 0.1}}}};
  EXPECT_EQ(result(post("/api/v1/optim_step", step, key_), key_).status, 200);
  EXPECT_TRUE(loop_->run_until([&] { return services_->snapshots.saving(run) < 0; }));
  for (const char* from : {"a snapshot", "a state"}) {
    if (from == std::string("a state")) {
      ASSERT_TRUE(truncate(key_));
    }
    options_.truncation.journal_bytes = 1;
    restart();
    const Sampler& sampler = services_->samplers.begin()->second;
    EXPECT_TRUE(sampler.tenant.starts_with("sampler:snapshots/")) << sampler.tenant;
    bool is_given = false;
    services_->prepare(sampler.tenant, sampler.owner, [&](const std::string&) { is_given = true; });
    ASSERT_TRUE(loop_->run_until([&] { return is_given; }));
    done(sampler.tenant);  // behind its creation
    EXPECT_EQ(executor_->shares.at(sampler.tenant).weight, 7) << from;
  }
}

}  // namespace
}  // namespace twinkle::server
