// A service that was started from a state equals a service that was started from all records, byte
// for byte.
#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"
#include "twinkle/server/history/state_file.h"
#include "twinkle/server/history/truncation_for_test.h"

namespace twinkle::server {
namespace {

namespace fs = std::filesystem;

void link_segments(const fs::path& from, const fs::path& to) {
  fs::create_directories(to);
  for (const store::Segment& segment : store::segments_in(from)) {
    std::error_code is_there;
    fs::create_hard_link(segment.path, to / segment.path.filename(), is_there);
  }
}

// Requests of all kinds in any order; states and kills at any moment.
class Anything : public TruncationTest {
 protected:
  Anything() {
    set_fault_point([this](std::string_view name) {
      if (name == "before truncation") link_segments(dir_ / "journal", archive_ / "journal");
      if (name.ends_with("state rename") && ++num_renames_ % 7 == 0)
        fail(Code::kInvalid, "killed here");
    });
  }
  ~Anything() override {
    close();  // whose threads come to these points
    set_fault_point({});
  }

  struct RunOf {
    std::string id, session;
    int64_t next = 1;
    std::vector<Request> late;  // that are sent later, or never
  };

  unsigned draw(unsigned n) { return static_cast<unsigned>(random_() % n); }
  template <class T>
  T& one_of(std::vector<T>& all) {
    return all[draw(static_cast<unsigned>(all.size()))];
  }
  static Request json_request(const std::string& path, const Json& body) {
    return request("/api/v1/" + path, boost::json::serialize(body), "tml-a");
  }

  // Sends what a retry can send again, and learns what came of it.
  void ask(const Request& r) {
    sent_.push_back(r);
    const Response told = answer(r);
    if (told.status != 200) return;
    const JsonObject body = parse(told);
    if (const Json* id = body.if_contains("request_id")) promises_.emplace_back(id->as_string());
    if (const Json* id = body.if_contains("sampling_session_id"))
      samplers_.emplace_back(id->as_string());
  }

  Request next_of(RunOf& run) {
    const int64_t seq = run.next++;
    const unsigned what = draw(12);
    const Json id = {{"model_id", run.id}, {"seq_id", seq}};
    const auto with = [&](JsonObject more) {
      for (const auto& [key, value] : id.as_object()) more[key] = value;
      return Json(std::move(more));
    };
    if (what < 5) {
      Request r = request("/api/v1/forward_backward",
                          forward_backward_bytes(run.id, seq, what == 0 ? "fail" : "cross_entropy"),
                          "tml-a");
      r.headers["content-type"] = "application/x-protobuf";
      return r;
    }
    const std::string name(1, static_cast<char>('a' + draw(3)));
    const Json overwrite = draw(2) == 0;
    switch (what) {
      case 5:
        return json_request("optim_step", id);  // refused: without adam_params
      case 6:
        return json_request("save_weights", with({{"path", name}, {"overwrite", overwrite}}));
      case 7:
        return json_request("save_weights_for_sampler",
                            with({{"path", name}, {"overwrite", overwrite}}));
      case 8:
        return json_request("save_weights_for_sampler", id);
      default:
        return json_request(
            "optim_step",
            with({{"adam_params", {{"learning_rate", 0.1 * static_cast<double>(seq)}}}}));
    }
  }

  void train_some() {
    RunOf& run = one_of(runs_);
    if (!run.late.empty() && draw(2) == 0) {
      ask(run.late.back());
      run.late.pop_back();
      return;
    }
    const Request r = next_of(run);
    if (draw(5) == 0)
      run.late.insert(run.late.begin(), r);
    else
      ask(r);
  }

  void sample_some() {
    if (samplers_.empty()) return;
    ask(json_request("asample",
                     {{"sampling_session_id", one_of(samplers_)},
                      {"seq_id", draw(20)},
                      {"prompt", {{"chunks", {{{"tokens", {1, 2, 3}}, {"type", "encoded_text"}}}}}},
                      {"sampling_params", {{"max_tokens", 3}, {"seed", 1}}}}));
  }

  void make_some() {
    const std::string s = draw(2) == 0 ? session() : one_of(runs_).session;
    const RunOf& of = one_of(runs_);
    const std::string kind = draw(3) == 0 ? "sampler_weights" : "weights";
    const std::string path =
        "tinker://" + of.id + "/" + kind + "/" + static_cast<char>('a' + draw(3));
    const int64_t number = 1 + static_cast<int64_t>(sent_.size());
    if (draw(2) == 0) {
      Json body = {{"session_id", s}, {"sampling_session_seq_id", number}};
      body.as_object()[draw(2) == 0 ? "base_model" : "model_path"] = path;
      if (draw(2) == 0)
        body = {{"session_id", s}, {"sampling_session_seq_id", number}, {"base_model", "null"}};
      return ask(json_request("create_sampling_session", body));
    }
    ask(json_request("load_weights", {{"session_id", s},
                                      {"model_seq_id", number},
                                      {"path", path},
                                      {"optimizer", draw(2) == 0}}));
    if (services_->runs.find(s + ":train:" + std::to_string(number)))
      runs_.push_back({.id = s + ":train:" + std::to_string(number), .session = s});
  }

  // A folder of a save, which then fails, or not.
  void change_disk() {
    const fs::path folder = dir_ / "checkpoints" / one_of(runs_).id / "weights" / "a";
    if (!is_there(folder / "foreign")) return (void)fs::create_directories(folder / "foreign");
    fs::remove(folder / "foreign");
  }

  void act() {
    const unsigned what = draw(21);
    if (what < 10) return train_some();
    if (what < 13) return sample_some();
    if (what == 13) return make_some();
    if (what == 14 && !promises_.empty()) {
      send(json_request("retrieve_future", {{"request_id", one_of(promises_)}}));
      return loop_->run();
    }
    if (what == 15) return loop_->pass(std::chrono::seconds(2));  // after a try that failed
    if (what == 16 && draw(12) == 0)
      return ask(json_request("sessions/" + one_of(runs_).session + "/finish", JsonObject{}));
    if (what == 16) return settle();
    if (what == 17 && draw(3) == 0) return kill();
    if (what == 18) holds_ = !holds_;
    if (what == 20) change_disk();
    if (what == 19 && !sent_.empty()) {
      const Request again = one_of(sent_);
      ask(again);
    }
  }

  void kill() {
    services_->close([this] { loop_->run(); });
    holds_ = false;
    close();
    begin();
  }
  void begin() {
    open();
    executor_->on_batch = [this] {
      for (int i = 0; holds_ && i < 30; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    // Beside later operations, as slow as a disk.
    executor_->on_write = [this] {
      for (int i = 0; holds_ && i < 10; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    go_on();
  }

  // All that clients can see of a service on this state, in order.
  std::vector<std::string> seen_in(const fs::path& state) {
    close();
    loop_ = std::make_unique<LoopForTest>();
    executor_ = std::make_unique<engine::NullExecutor>();
    engine::DispatcherOptions options;
    options.gather_ms = 0;
    dispatcher_ = std::make_unique<engine::Dispatcher>(options, *executor_);
    backend_ = std::make_unique<NullBackend>(*dispatcher_);
    services_ = std::make_unique<Services>(*backend_, *loop_, state);
    go_on();
    settle();
    std::vector<std::string> out;
    const auto note = [&](const std::string& what, const Request& r) {
      const int64_t num_held = services_->promises.num_held();
      const auto told = send(r);
      if (services_->promises.num_held() == num_held) {  // a poll may wait for ever
        EXPECT_TRUE(loop_->run_until([&] { return told->has_value(); }));
      }
      settle();
      out.push_back(what + " " +
                    (*told ? std::to_string((*told)->status) + " " + (*told)->body : "waits"));
    };
    const auto all_promises = [&] {
      for (const std::string& id : promises_) {
        note(id, json_request("retrieve_future", {{"request_id", id}}));
        const auto* made = services_->promises.find(id);
        out.push_back(made ? std::to_string(made->number) : "gone");
      }
      for (const RunOf& run : runs_) {
        out.push_back(run.id);
        const bool is_made = services_->runs.find(run.id)->is_made;
        for (const std::string& what : is_made ? all_done(run.id) : std::vector<std::string>{})
          out.push_back(what);
      }
    };
    all_promises();
    for (const RunOf& run : runs_) {
      Request r = json_request("training_runs/" + run.id, JsonObject{});
      r.method = "GET";
      note(run.id, r);
      // In ms, which the answer does not tell.
      out.push_back(std::to_string(services_->runs.find(run.id)->last_ms));
    }
    for (const auto& [path, checkpoint] : services_->checkpoints)
      note(path, json_request("weights_info", {{"tinker_path", path}}));
    for (const auto& [id, sampler] : services_->samplers)
      out.push_back(id + " " + sampler.tenant + " " + std::to_string(sampler.version));
    for (const Request& r : sent_) note("again " + r.path, r);
    for (const RunOf& run : runs_)
      for (const Request& r : run.late) note("late " + r.path, r);
    all_promises();
    out.push_back(std::to_string(services_->promises.num_ever()));
    return out;
  }
  std::vector<std::string> all_done(const std::string& run) {
    std::vector<engine::Operation> one;
    one.emplace_back(engine::Inspect{run});
    const auto result =
        std::get<engine::InspectResult>(dispatcher_->submit(std::move(one))[0].get());
    std::vector<std::string> out;
    for (const auto& t : result.tensors)
      out.push_back(t.name.starts_with("step") ? t.name : "train");
    return out;
  }

  std::mt19937 random_{1};
  ScratchDir archive_, copies_;
  std::atomic<bool> holds_ = false;
  int num_renames_ = 0;
  std::vector<RunOf> runs_;
  std::vector<std::string> samplers_, promises_;
  std::vector<Request> sent_;
};

TEST_F(Anything, AStartFromAStateEqualsOneFromAllRecords) {
  int64_t num_states = 0;
  for (unsigned seed = 1; seed <= 25; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    close();
    for (const fs::path& dir : {dir_.path(), archive_.path(), copies_.path()})
      for (const auto& entry : fs::directory_iterator(dir)) remove_tree(entry.path());
    runs_.clear(), samplers_.clear(), promises_.clear(), sent_.clear();
    random_.seed(seed);
    options_.snapshots.every = std::chrono::milliseconds(draw(2) * 60000);
    options_.truncation.journal_bytes = draw(3) == 0 ? 3000 : 1;
    options_.promises.max_result_bytes = draw(2) * 1000000;
    options_.lines.max_given = draw(2) == 0 ? 1 : 1000;
    begin();
    for (int i = 0; i < 2; ++i) {
      const std::string s = session();
      runs_.push_back({.id = s + ":train:0", .session = s});
      ask(json_request("create_model", model(s)));
    }
    for (int i = 0; i < 150; ++i) act();
    holds_ = false;
    kill();
    num_states += services_->truncation.num_taken() + is_there(state_file(dir_ / "journal"));
    close();
    link_segments(dir_ / "journal", archive_ / "journal");
    const auto copy = fs::copy_options::recursive;
    fs::copy(dir_.path(), copies_ / "truncated", copy);
    fs::copy(dir_.path(), copies_ / "whole", copy);
    fs::remove_all(copies_ / "whole/journal");
    fs::copy(archive_ / "journal", copies_ / "whole/journal", copy);
    const auto whole = seen_in(copies_ / "whole");
    const auto truncated = seen_in(copies_ / "truncated");
    ASSERT_EQ(whole.size(), truncated.size());
    for (size_t i = 0; i < whole.size(); ++i) ASSERT_EQ(whole[i], truncated[i]) << i;
  }
  EXPECT_GT(num_states, 20);
}

}  // namespace
}  // namespace twinkle::server
