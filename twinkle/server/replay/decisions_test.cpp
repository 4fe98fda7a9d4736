// Starts with other options, names and disks than those before: what was decided stays.
#include "twinkle/server/replay/decisions.h"

#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "twinkle/base/error.h"
#include "twinkle/io/limit_for_test.h"
#include "twinkle/server/service_for_test.h"

namespace twinkle::server {
namespace {

namespace fs = std::filesystem;

class DecisionsTest : public ServiceTest {
 protected:
  DecisionsTest() { go_on(); }
  void restart(const engine::DispatcherOptions& options = {}) {
    open(options);
    go_on();
  }
  Response create(const std::string& session, const std::string& name) {
    Json body = model(session);
    body.as_object()["base_model"] = name;
    return post("/api/v1/create_model", body);
  }
  Response sampler(const std::string& session, const std::string& name,
                   const std::string& key = "tml-a") {
    return post("/api/v1/create_sampling_session",
                {{"session_id", session}, {"sampling_session_seq_id", 0}, {"base_model", name}},
                key);
  }
  Response sample(const std::string& sampler, int64_t seq_id, const std::string& key = "tml-a") {
    return post("/api/v1/asample",
                {{"sampling_session_id", sampler},
                 {"seq_id", seq_id},
                 {"prompt", {{"chunks", {{{"tokens", {1, 2, 3}}, {"type", "encoded_text"}}}}}},
                 {"sampling_params", {{"max_tokens", 3}}}},
                key);
  }
  Response save(const std::string& run, int64_t seq_id) {
    return post("/api/v1/save_weights", {{"model_id", run}, {"seq_id", seq_id}, {"path", "a"}});
  }
  fs::path folder(const std::string& run) const {
    return dir_ / "checkpoints" / run / "weights" / "a";
  }
  void put_foreign(const std::string& run) const {
    fs::create_directories(folder(run));
    std::ofstream(folder(run) / "foreign") << "x";
  }
  int64_t status_of(const std::string& request_id) {
    return post("/api/v1/retrieve_future", {{"request_id", request_id}}).status;
  }
};

TEST(Decisions, OnesThatWereTakenBeforeAreNotTakenAgain) {
  Decisions decisions;
  const auto refuse = [] { fail(Code::kConflict, "no"); };
  EXPECT_THROW(decisions.decide(refuse), Error);
  EXPECT_EQ(decisions.refused(), "no");
  decisions.come();
  EXPECT_EQ(decisions.refused(), "");
  EXPECT_THROW(decisions.decide([] { fail(Code::kBusy, "later"); }), Error);
  EXPECT_EQ(decisions.refused(), "") << "it comes again";
  decisions.recall("");
  decisions.decide(refuse);
  decisions.recall("because");
  try {
    decisions.decide([] { FAIL() << "it was decided"; });
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Code::kInvalid);
    EXPECT_STREQ(e.what(), "because");
  }
}

TEST(Decisions, WhatARequestHasChangedStaysUntilTheNextComes) {
  Decisions decisions;
  decisions.come();
  EXPECT_FALSE(decisions.has_changed());
  decisions.change([] {});
  EXPECT_TRUE(decisions.has_changed());
  decisions.come();
  EXPECT_FALSE(decisions.has_changed());
  EXPECT_THROW(decisions.change([] { fail(Code::kBusy, "closed"); }), Error);
  EXPECT_TRUE(decisions.has_changed());
  decisions.recall("");
  EXPECT_FALSE(decisions.has_changed());
}

TEST(DecisionsDeathTest, MemoryThatEndsInTheMiddleOfAChangeEndsTheProcess) {
  EXPECT_DEATH(Decisions().change([] { throw std::bad_alloc(); }), "");
}

TEST_F(DecisionsTest, RunsAndSamplersOfANameThatIsNotServedAnyMoreGoOnAndNewOnesAreRefused) {
  const std::string id = run(), of_base = text(sampler(session(), "null"), "sampling_session_id");
  result(train(id, 1));
  std::atomic<bool> go = false;
  executor_->on_batch = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  train(id, 2);
  const std::string made_last = session();
  const Response unended = create(made_last, "null");  // behind that in the engine
  services_->close([this] { loop_->run(); });
  go = true;
  names_ = {"mine"};
  restart();
  EXPECT_EQ(text(result(unended), "model_id"), made_last + ":train:0");
  EXPECT_EQ(result(train(id, 3)).content_type, "application/x-protobuf");
  EXPECT_EQ(result(sample(of_base, 0)).content_type, "application/x-protobuf");
  EXPECT_EQ(text(post("/api/v1/get_info", {{"model_id", id}}), "model_name"), "null");
  const std::string s = session();
  const std::string refusal = "server: base_model 'null' is not served here, only mine";
  EXPECT_EQ(text(create(s, "null"), "detail"), refusal);
  EXPECT_EQ(text(sampler(s, "null"), "detail"), refusal);
  EXPECT_EQ(result(create(s, "mine")).status, 200);
}

TEST_F(DecisionsTest, WhatWasRefusedForItsNameStaysRefusedWhenTheNameIsServed) {
  const std::string s = session();
  EXPECT_EQ(create(s, "mine").status, 422);
  EXPECT_EQ(sampler(s, "mine").status, 422);
  names_ = {"mine"};
  restart();
  EXPECT_TRUE(services_->runs.all().empty());
  EXPECT_TRUE(services_->samplers.empty());
  EXPECT_EQ(result(create(s, "mine")).status, 200) << "the client may ask again";
}

TEST_F(DecisionsTest, WhatWasAcceptedIsThereThoughFewerMayBeOpenNow) {
  const std::string id = run();
  const Response fourth = step(id, 4), third = train(id, 3), second = step(id, 2);
  const std::string s = session();
  options_.promises.max_open = 1;
  restart();
  EXPECT_EQ(create(s, "null").status, 503) << "the limit holds for what comes";
  EXPECT_EQ(train(id, 5).status, 503);
  close();
  options_.promises.max_open = 4;
  restart();
  const Response first = train(id, 1);
  for (const Response& r : {first, second, third, fourth}) result(r);
  EXPECT_EQ(done(id).size(), 4U);
}

TEST_F(DecisionsTest, WhatWasDoneIsDoneAgainThoughTheEngineTakesLessMemoryNow) {
  const std::string id = run();
  const Response first = train(id, 1), third = train(id, 3);
  const std::string told = result(first).body;
  const int64_t less = engine::num_bytes(engine::Operation(engine::Inspect{id}));
  restart({.max_queued_bytes = less});
  EXPECT_EQ(done(id).size(), 1U) << "and it ended as before";
  EXPECT_EQ(result(first).body, told);
  const Response refused = train(id, 2);
  EXPECT_EQ(refused.status, 422);
  EXPECT_NE(text(refused, "detail").find("max_queued_bytes is " + std::to_string(less)),
            std::string::npos);
  EXPECT_EQ(result(third).content_type, "application/x-protobuf") << "it was accepted";
  const std::vector<std::string> before = done(id);
  restart();
  EXPECT_EQ(train(id, 2).status, 422) << "it was refused";
  EXPECT_EQ(text(failure(step(id, 4)), "error").substr(0, 43),
            "optim_step: a request of its window failed,");
  EXPECT_EQ(done(id).size(), before.size());
}

// Between the request's record and that of its refusal the disk becomes full.
TEST_F(DecisionsTest, ARefusalThatTheDiskDoesNotTakeIsWrittenBeforeAllThatComesBehindIt) {
  std::signal(SIGXFSZ, SIG_IGN);
  const std::string id = run();
  options_.journal.retry_seconds = 0.05;
  restart({.max_queued_bytes = 300});  // a step, not three tokens
  Request request = DecisionsTest::request("/api/v1/forward_backward",
                                           forward_backward_bytes(id, 1, "cross_entropy"), "tml-a");
  request.headers["content-type"] = "application/x-protobuf";
  const auto refused = send(std::move(request));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it is in the journal
  {
    const LimitForTest full(RLIMIT_FSIZE, 1);
    for (int i = 0; i < 1000 && services_->history.trouble().empty(); ++i) {
      loop_->run();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_NE(services_->history.trouble(), "");
    EXPECT_FALSE(refused->has_value()) << "it would be forgotten";
    EXPECT_EQ(step(id, 2).status, 503);
  }
  Response stepped = step(id, 2);
  for (int i = 0; i < 1000 && stepped.status == 503; ++i, stepped = step(id, 2))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(refused->value_or(Response{}).status, 422);
  EXPECT_EQ(text(failure(stepped), "error").substr(0, 43),
            "optim_step: a request of its window failed,");
  restart();
  EXPECT_EQ(train(id, 1).status, 422) << "it was refused";
  EXPECT_EQ(train(id, 3).status, 200);
}

TEST_F(DecisionsTest, SnapshotsAndSamplersAreThereThoughTheEngineTakesLessAtATimeNow) {
  options_.snapshots.every = std::chrono::milliseconds(0);
  restart();
  const std::string id = run();
  result(train(id, 1)), result(step(id, 2));
  EXPECT_TRUE(loop_->run_until([&] { return services_->snapshots.saving(id) < 0; }));
  std::vector<Response> unended;
  std::atomic<bool> go = false;
  executor_->on_step = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  for (const char* key : {"tml-a", "tml-b", "tml-c"}) {
    const std::string s = text(sampler(session(key), "null", key), "sampling_session_id");
    unended.push_back(sample(s, 0, key));
  }
  services_->close([this] { loop_->run(); });
  go = true;
  restart({.max_queued_total = 1,
           .max_queued_bytes = engine::num_bytes(engine::Operation(engine::Inspect{id}))});
  for (int i = 0; i < 1000 && services_->promises.num_open() > 0; ++i) {
    loop_->pass(std::chrono::milliseconds(50));  // until the engine is asked again
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(executor_->num_batches, 0) << "it has its snapshot";
  EXPECT_EQ(done(id).size(), 2U);
  size_t i = 0;
  for (const char* key : {"tml-a", "tml-b", "tml-c"})
    EXPECT_EQ(result(unended[i++], key).content_type, "application/x-protobuf");
}

TEST_F(DecisionsTest, ASaveThatWasTakenIsThereThoughItsFolderHoldsSomethingElseNow) {
  const std::string id = run();
  const std::string path = text(result(save(id, 1)), "path");
  put_foreign(id);
  restart();
  result(train(id, 2));
  EXPECT_EQ(services_->checkpoints.count(path), 1U);
}

TEST_F(DecisionsTest, ASaveThatItsFolderRefusedStaysRefusedWhenTheFolderIsGone) {
  const std::string id = run();
  put_foreign(id);
  const Response refused = save(id, 1);
  EXPECT_EQ(text(failure(refused), "error"), "null: the folder holds 'foreign'");
  EXPECT_EQ(text(failure(refused), "category"), "user");
  fs::remove_all(folder(id));
  restart();
  EXPECT_EQ(text(failure(save(id, 1)), "error"), "null: the folder holds 'foreign'");
  EXPECT_EQ(result(save(id, 2)).status, 200);
  EXPECT_TRUE(services_->checkpoints.contains("tinker://" + id + "/weights/a"));
}

TEST_F(DecisionsTest, ASamplerWhoseCheckpointCannotBeReadStaysRefusedAndOneThatWasMadeIsKnown) {
  const std::string id = run(), s = session();
  const std::string path = text(result(post("/api/v1/save_weights_for_sampler",
                                            {{"model_id", id}, {"seq_id", 1}, {"path", "a"}})),
                                "path");
  const auto make = [&](int64_t number) {
    return post("/api/v1/create_sampling_session",
                {{"session_id", s}, {"sampling_session_seq_id", number}, {"model_path", path}});
  };
  const auto make_unreadable = [&] {
    backend_->on_check = [](const engine::Operation& o) {
      const auto* create = std::get_if<engine::Create>(&o);
      require(!create || create->directory.empty(), Code::kInvalid, "null: it cannot be read");
    };
  };
  const std::string sampler = text(make(0), "sampling_session_id");
  const Response sampled = sample(sampler, 0);
  result(sampled);
  restart();
  make_unreadable();
  EXPECT_EQ(text(make(0), "sampling_session_id"), sampler);
  EXPECT_EQ(sample(sampler, 0).body, sampled.body);
  EXPECT_EQ(text(sample(sampler, 1), "detail"), "null: it cannot be read");
  const Response refused = make(1);
  EXPECT_EQ(refused.status, 422);
  EXPECT_EQ(text(refused, "detail"), "null: it cannot be read");
  restart();
  EXPECT_EQ(services_->samplers.size(), 1U);
  EXPECT_EQ(result(sample(sampler, 1)).status, 200) << "its number is not used up";
  EXPECT_NE(text(make(1), "sampling_session_id"), sampler);
}

}  // namespace
}  // namespace twinkle::server
