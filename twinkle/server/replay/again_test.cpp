// A start does again what a journal holds: where memory ends meanwhile, and where a disk is slow.
#include <atomic>
#include <new>
#include <thread>

#include "twinkle/base/error.h"
#include "twinkle/engine/heap_shortage_for_test.h"
#include "twinkle/server/service_for_test.h"

namespace twinkle::server {
namespace {

class AgainTest : public ServiceTest {
 protected:
  AgainTest() { go_on(); }
  void restart() {
    open();
    go_on();
  }
  Response promise(const std::string& request_id) {
    return post("/api/v1/retrieve_future", {{"request_id", request_id}});
  }
};

TEST_F(AgainTest, AStartForWhichMemoryEndsTellsSoAndTheNextLosesNothing) {
  const std::string id = run();
  result(train(id, 1));
  const Response stepped = step(id, 2);
  const std::string told = result(stepped).body;
  // What the start says where allocation number `n` fails for the step.
  const auto start = [&](int64_t n) -> std::string {
    open();
    try {
      services_->open(
          {}, false,
          [&](uint64_t sequence, const Command& command) {
            const bool is_step = command.path.ends_with("optim_step");
            const engine::HeapShortage shortage(is_step ? n : -1, 1);
            replay(sequence, command, *services_);
          },
          [this] { loop_->run(); });
    } catch (const Error& e) {
      return e.what();
    } catch (const std::bad_alloc&) {
      return "bad_alloc";
    }
    return "";
  };
  std::string said = "bad_alloc";
  for (int64_t n = 0; said == "bad_alloc" && n < 1000; ++n) said = start(n);
  EXPECT_NE(said.find("server: there is no memory for the request now"), std::string::npos) << said;
  restart();
  EXPECT_EQ(result(stepped).body, told);
  EXPECT_EQ(done(id).size(), 2U);
}

TEST_F(AgainTest, ASampleHasAtMost64StopTextsOf1024BytesAndARefusedOneStaysRefused) {
  const std::string s = session();
  const std::string sampler =
      text(post("/api/v1/create_sampling_session",
                {{"session_id", s}, {"sampling_session_seq_id", 0}, {"base_model", "null"}}),
           "sampling_session_id");
  const auto body = [&](int64_t seq_id, size_t num_texts, size_t num_bytes) -> Json {
    JsonArray stop;
    for (size_t i = 0; i < num_texts; ++i) stop.emplace_back(std::string(num_bytes, 'x'));
    return {{"sampling_session_id", sampler},
            {"seq_id", seq_id},
            {"prompt", {{"chunks", {{{"tokens", {1, 2, 3}}, {"type", "encoded_text"}}}}}},
            {"sampling_params", {{"max_tokens", 3}, {"stop", std::move(stop)}}}};
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
  const Response told = promise(sampler + ":4");
  EXPECT_EQ(told.status, 200) << told.body;
  EXPECT_EQ(told.content_type, "application/x-protobuf") << told.body;
  for (const int64_t seq_id : {2, 3})
    EXPECT_EQ(promise(sampler + ":" + std::to_string(seq_id)).status, 404) << "it was refused";
}

TEST_F(AgainTest, WhatCameBehindASnapshotThatWasStillWrittenIsSavedAtTheEndToo) {
  std::atomic<bool> go = false;
  executor_->on_write = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const std::string id = run();
  result(train(id, 1));
  EXPECT_TRUE(services_->snapshots.take(*services_->runs.find(id)));
  result(step(id, 2));
  EXPECT_EQ(services_->snapshots.saving(id), 1);
  bool is_saved = false;
  services_->save_runs([&] { is_saved = true; });
  go = true;
  for (int i = 0; i < 1000 && !is_saved; ++i) {
    loop_->pass(std::chrono::milliseconds(20));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(is_saved);
  EXPECT_EQ(services_->snapshots.last(id), 2);
  restart();
  EXPECT_EQ(executor_->num_batches, 0);
  EXPECT_EQ(done(id).size(), 2U);
}

}  // namespace
}  // namespace twinkle::server
