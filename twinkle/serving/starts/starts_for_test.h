// For tests of starts: a service that is killed and goes on, by the requests of its clients.
#pragma once
#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/serving/api/service_for_test.h"
#include "twinkle/serving/log/fault_point_for_test.h"
#include "twinkle/serving/log/state_file.h"
#include "twinkle/store/segment.h"

namespace twinkle::server {

class StartsTest : public ServiceTest {
 protected:
  ~StartsTest() override {
    end();  // its threads come to fault points
    core::set_fault_point({});
  }
  // As a kill would: what has not ended is not told.
  void end() {
    router_.reset();
    room_.reset();
    kill();
  }
  // Why a start is refused, or "".
  std::string refusal_of_start() {
    try {
      restart();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
  // Until a start has done all again, and what was begun has ended.
  void settle() {
    EXPECT_TRUE(until([this] { return is_settled(); }));
  }
  bool is_settled() const {
    const core::Domain& domain = core_->domain();
    const auto rests = [](const auto& at) {
      const core::Run& run = at.second;
      return (run.is_made || !run.lost.empty()) &&
             std::ranges::none_of(run.work, [](const auto& work) {
               return work.second.state == core::Work::kStarted;
             });
    };
    const auto waits_or_ended = [&](const auto& at) {
      const auto [of, seq_id] = core::parse_request_id(at.first);
      const core::Run* const run = domain.run(of);
      return at.second.is_ended || (run && run->work.contains(seq_id));
    };
    return core_->num_again() == 0 && core_->num_recovering() == 0 &&
           std::ranges::all_of(domain.runs(), rests) &&
           std::ranges::all_of(domain.futures(), waits_or_ended);
  }
  std::vector<std::string> done(const std::string& run) {
    settle();
    return CoreTest::done(run);
  }
  // "train" or "step", in order.
  std::vector<std::string> kinds(const std::string& run) {
    std::vector<std::string> out;
    for (const std::string& what : done(run)) out.push_back(what == "step" ? what : "train");
    return out;
  }
  int64_t saved(const std::string& run) const {
    const core::Snapshot& snapshot = core_->domain().run(run)->snapshot;
    return snapshot.folder.empty() ? -1 : snapshot.seq_id;
  }
  bool is_saved(const std::string& run, int64_t seq_id) {
    return until([&] { return saved(run) >= seq_id; });
  }
  // As a server that is told to end.
  void run_saves() {
    settle();
    CoreTest::run(core_->save_runs());
  }
  // States take the place of the journal's records, where each record is enough for that. One that
  // has begun before this call holds less; the next is of what is there now.
  bool compact(const std::string& key = "tml-a") {
    settle();
    const int64_t enough = core_->num_states() + 2;
    for (int i = 0; i < 400 && core_->num_states() < enough; ++i) {
      session(key);
      loop_->pass(std::chrono::milliseconds(500));
      std::this_thread::sleep_for(std::chrono::milliseconds(i < 100 ? 1 : 10));
    }
    return core_->num_states() >= enough;
  }
  core::State state() const { return core::StateReader(dir_ / "journal").state(); }
  Response poll(const std::string& request_id) {
    return post("/api/v1/retrieve_future", {{"request_id", request_id}});
  }
  Response create(const std::string& session, const std::string& name) {
    Json body = model(session);
    body.as_object()["base_model"] = name;
    return post("/api/v1/create_model", body);
  }
  Response sampler_of(const std::string& session, int64_t number, const char* field,
                      const std::string& what, const std::string& key = "tml-a") {
    return post("/api/v1/create_sampling_session",
                {{"session_id", session}, {"sampling_session_seq_id", number}, {field, what}}, key);
  }
  std::string sampler(const std::string& key = "tml-a") {
    return text(sampler_of(session(key), 0, "base_model", "null", key), "sampling_session_id");
  }
  static Json sample_body(const std::string& sampler, int64_t seq_id) {
    return {{"sampling_session_id", sampler},
            {"seq_id", seq_id},
            {"num_samples", 1},
            {"prompt", {{"chunks", {{{"tokens", {1, 2, 3}}, {"type", "encoded_text"}}}}}},
            {"sampling_params", {{"max_tokens", 3}}}};
  }
  Response sample(const std::string& sampler, int64_t seq_id, const std::string& key = "tml-a") {
    return post("/api/v1/asample", sample_body(sampler, seq_id), key);
  }
  Response save(const std::string& run, int64_t seq_id, const std::string& name = "a",
                bool overwrite = false, const std::string& key = "tml-a") {
    return post("/api/v1/save_weights",
                {{"model_id", run}, {"seq_id", seq_id}, {"path", name}, {"overwrite", overwrite}},
                key);
  }
  Response publish(const std::string& run, int64_t seq_id) {
    return post("/api/v1/save_weights_for_sampler", {{"model_id", run}, {"seq_id", seq_id}});
  }
  Response load(const std::string& path, bool optimizer = true) {
    return post(
        "/api/v1/load_weights",
        {{"session_id", session()}, {"model_seq_id", 0}, {"path", path}, {"optimizer", optimizer}});
  }
  std::string error_of(const Response& ack, const std::string& key = "tml-a") {
    return text(failure(ack, key), "error");
  }
};

}  // namespace twinkle::server
