// Starts with other options, names and disks than those before: what was decided stays.
#include <atomic>
#include <csignal>
#include <filesystem>
#include <thread>

#include "twinkle/base/file.h"
#include "twinkle/io/limit_for_test.h"
#include "twinkle/serving/starts/starts_for_test.h"

namespace twinkle::server {
namespace {

namespace fs = std::filesystem;

class DecidedTest : public StartsTest {
 protected:
  void restart_with(const engine::DispatcherOptions& options) {
    open(options);
    restart();
  }
  fs::path folder(const std::string& run) const {
    return dir_ / "checkpoints" / run / "weights" / "a";
  }
  void put_foreign(const std::string& run) const {
    fs::create_directories(folder(run));
    write_text(folder(run) / "foreign", "x");
  }
};

TEST_F(DecidedTest, RunsAndSamplersOfANameThatIsNotServedAnyMoreGoOnAndNewOnesAreRefused) {
  const std::string id = run(), of_base = sampler();
  result(train(id, 1));
  std::atomic<bool> go = false;
  executor_->on_batch = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  train(id, 2);
  const std::string made_last = session();
  const Response unended = create(made_last, "null");  // it comes behind that in the engine
  core_->close();
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
  EXPECT_EQ(text(sampler_of(s, 0, "base_model", "null"), "detail"), refusal);
  EXPECT_EQ(result(create(s, "mine")).status, 200);
}

TEST_F(DecidedTest, WhatWasRefusedForItsNameStaysRefusedWhenTheNameIsServed) {
  const std::string s = session();
  EXPECT_EQ(create(s, "mine").status, 422);
  EXPECT_EQ(sampler_of(s, 0, "base_model", "mine").status, 422);
  names_ = {"mine"};
  restart();
  EXPECT_TRUE(core_->domain().runs().empty());
  EXPECT_TRUE(core_->domain().samplers().empty());
  EXPECT_EQ(result(create(s, "mine")).status, 200) << "the client may ask again";
}

TEST_F(DecidedTest, WhatWasAcceptedIsThereThoughFewerMayBeOpenNow) {
  const std::string id = run();
  const Response fourth = step(id, 4), third = train(id, 3), second = step(id, 2);
  const std::string s = session();
  options_.futures.max_open = 1;
  restart();
  EXPECT_EQ(create(s, "null").status, 503) << "the limit holds for what comes";
  EXPECT_EQ(train(id, 5).status, 503);
  options_.futures.max_open = 4;
  restart();
  const Response first = train(id, 1);
  for (const Response& r : {first, second, third, fourth}) result(r);
  EXPECT_EQ(done(id).size(), 4U);
}

TEST_F(DecidedTest, WhatWasDoneIsDoneAgainThoughTheEngineTakesLessMemoryNow) {
  const std::string id = run();
  const Response first = train(id, 1), third = train(id, 3);
  const std::string told = result(first).body;
  const int64_t less = engine::num_bytes(engine::Operation(engine::Inspect{id}));
  restart_with({.max_queued_bytes = less});
  EXPECT_EQ(done(id).size(), 1U) << "and it ended as before";
  EXPECT_EQ(result(first).body, told);
  const Response refused = train(id, 2);
  const std::string why = error_of(refused);
  EXPECT_NE(why.find("max_queued_bytes is " + std::to_string(less)), std::string::npos) << why;
  EXPECT_EQ(result(third).content_type, "application/x-protobuf") << "it was accepted";
  const std::vector<std::string> before = done(id);
  restart_with({});
  EXPECT_EQ(error_of(train(id, 2)), why) << "it was refused";
  EXPECT_EQ(error_of(step(id, 4)).substr(0, 43), "optim_step: a request of its window failed,");
  EXPECT_EQ(done(id).size(), before.size());
}

TEST_F(DecidedTest, WhatTheDiskDoesNotTakeIsNeitherAnsweredNorForgotten) {
  std::signal(SIGXFSZ, SIG_IGN);
  options_.journal.retry_seconds = 0.05;
  restart();
  const std::string id = run();
  std::atomic<bool> go = false;
  executor_->on_batch = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const Response first = train(id, 1);
  {
    const LimitForTest full(RLIMIT_FSIZE, 1);
    const auto polled =
        send(request("/api/v1/retrieve_future", R"({"request_id":")" + id + R"(:1"})", "tml-a"));
    go = true;
    EXPECT_TRUE(until([&] { return !core_->log().trouble().empty(); }));
    for (int i = 0; i < 20; ++i) loop_->pass(std::chrono::milliseconds(50));
    EXPECT_FALSE(polled->has_value()) << "its end could be forgotten";
    EXPECT_EQ(step(id, 2).status, 503);
  }
  Response stepped = step(id, 2);
  EXPECT_TRUE(until([&] {
    if (stepped.status == 503) stepped = step(id, 2);
    return stepped.status == 200;
  }));
  const std::string told = result(first).body;
  EXPECT_TRUE(parse(result(stepped)).contains("metrics"));
  restart();
  EXPECT_EQ(result(first).body, told);
  EXPECT_EQ(done(id).size(), 2U);
}

TEST_F(DecidedTest, SnapshotsAndSamplersAreThereThoughTheEngineTakesLessAtATimeNow) {
  const std::string id = run();
  result(train(id, 1)), result(step(id, 2));
  run_saves();
  std::vector<Response> unended;
  std::atomic<bool> go = false;
  executor_->on_step = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  for (const char* key : {"tml-a", "tml-b", "tml-c"})
    unended.push_back(sample(sampler(key), 0, key));
  core_->close();
  go = true;
  restart_with({.max_queued_total = 1,
                .max_queued_bytes = engine::num_bytes(engine::Operation(engine::Inspect{id}))});
  EXPECT_TRUE(until([&] { return core_->domain().num_open() == 0; }));
  EXPECT_EQ(done(id).size(), 2U);
  EXPECT_EQ(executor_->num_batches, 0) << "it has its snapshot";
  size_t i = 0;
  for (const char* key : {"tml-a", "tml-b", "tml-c"})
    EXPECT_EQ(result(unended[i++], key).content_type, "application/x-protobuf");
}

TEST_F(DecidedTest, ASaveThatWasTakenIsThereThoughItsFolderHoldsSomethingElseNow) {
  const std::string id = run();
  const std::string path = text(result(save(id, 1)), "path");
  put_foreign(id);
  restart();
  result(train(id, 2));
  EXPECT_NE(core_->domain().checkpoint(id + "/weights/a"), nullptr);
  EXPECT_EQ(path, "tinker://" + id + "/weights/a");
}

TEST_F(DecidedTest, ASaveThatItsFolderRefusedStaysRefusedWhenTheFolderIsGone) {
  const std::string id = run();
  put_foreign(id);
  const Response refused = save(id, 1);
  EXPECT_EQ(error_of(refused), "null: the folder holds 'foreign'");
  EXPECT_EQ(text(failure(refused), "category"), "user");
  fs::remove_all(folder(id));
  restart();
  EXPECT_EQ(error_of(save(id, 1)), "null: the folder holds 'foreign'");
  EXPECT_EQ(result(save(id, 2)).status, 200);
  EXPECT_NE(core_->domain().checkpoint(id + "/weights/a"), nullptr);
}

TEST_F(DecidedTest, ASamplerWhoseCheckpointCannotBeReadStaysRefusedAndOneThatWasMadeIsKnown) {
  const std::string id = run(), s = session();
  const std::string path = text(result(post("/api/v1/save_weights_for_sampler",
                                            {{"model_id", id}, {"seq_id", 1}, {"path", "a"}})),
                                "path");
  const auto make = [&](int64_t number) { return sampler_of(s, number, "model_path", path); };
  const std::string sampler = text(make(0), "sampling_session_id");
  const Response sampled = sample(sampler, 0);
  result(sampled);
  restart();
  backend_->on_check = [](const engine::Operation& o) {
    const auto* create = std::get_if<engine::Create>(&o);
    require(!create || create->directory.empty(), Code::kInvalid, "null: it cannot be read");
  };
  EXPECT_EQ(text(make(0), "sampling_session_id"), sampler);
  EXPECT_EQ(sample(sampler, 0).body, sampled.body);
  EXPECT_EQ(text(sample(sampler, 1), "detail"), "null: it cannot be read");
  const Response refused = make(1);
  EXPECT_EQ(refused.status, 422);
  EXPECT_EQ(text(refused, "detail"), "null: it cannot be read");
  restart();
  EXPECT_EQ(core_->domain().samplers().size(), 1U);
  EXPECT_EQ(result(sample(sampler, 1)).status, 200) << "its number is not used up";
  EXPECT_NE(text(make(1), "sampling_session_id"), sampler);
}

TEST_F(DecidedTest, ASampleHasAtMost64StopTextsOf1024BytesAndARefusedOneStaysRefused) {
  const std::string of_base = sampler();
  const auto body = [&](int64_t seq_id, size_t num_texts, size_t num_bytes) {
    JsonArray stop;
    for (size_t i = 0; i < num_texts; ++i) stop.emplace_back(std::string(num_bytes, 'x'));
    Json out = sample_body(of_base, seq_id);
    out.at("sampling_params").as_object()["stop"] = std::move(stop);
    return out;
  };
  const auto refusal = [&](const Json& sample) {
    const Response told = post("/api/v1/asample", sample);
    EXPECT_EQ(told.status, 422) << told.body;
    return text(told, "detail");
  };
  EXPECT_EQ(refusal(body(2, 65, 1)),
            "server: sampling_params.stop has 65 texts, it must have at most 64");
  Json long_one = body(3, 2, 1024);
  long_one.at("sampling_params").at("stop").at(1) = std::string(1025, 'x');
  EXPECT_EQ(refusal(long_one),
            "server: sampling_params.stop[1] has 1025 bytes, it must have at most 1024");
  EXPECT_EQ(post("/api/v1/asample", body(4, 64, 1024)).status, 200);
  restart();
  const Response told = poll(of_base + ":4");
  EXPECT_EQ(told.status, 200) << told.body;
  EXPECT_EQ(told.content_type, "application/x-protobuf") << told.body;
  for (const int64_t seq_id : {2, 3})
    EXPECT_EQ(poll(of_base + ":" + std::to_string(seq_id)).status, 404) << "it was refused";
}

}  // namespace
}  // namespace twinkle::server
