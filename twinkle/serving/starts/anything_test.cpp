// Requests of all kinds in any order, states and kills at any moment: a service that was started
// from a state equals one that was started from all records, byte for byte, and its runs equal
// those of a service that nothing disturbed.
#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "twinkle/base/file.h"
#include "twinkle/serving/log/log.h"
#include "twinkle/serving/starts/starts_for_test.h"

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

void clear(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) remove_tree(entry.path());
}

class Anything : public StartsTest {
 protected:
  Anything() {
    core::set_fault_point([this](std::string_view name) {
      if (name == "before truncation") link_segments(dir_ / "journal", archive_ / "journal");
      if (name.ends_with("state rename") && ++num_renames_ % 7 == 0)
        fail(Code::kInvalid, "killed here");
    });
  }
  ~Anything() override {
    end();  // its threads come to these points
    core::set_fault_point({});
  }

  struct Numbered {
    int64_t seq_id = 0;
    Request request;
  };
  struct RunOf {
    std::string id, session;
    int64_t next = 1;
    std::vector<Numbered> late;           // that are sent later, or never
    std::map<int64_t, Request> accepted;  // by number
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
  bool ask(const Request& r) {
    sent_.push_back(r);
    const Response told = answer(r);
    if (told.status != 200) return false;
    const JsonObject body = parse(told);
    if (const Json* id = body.if_contains("request_id")) promises_.emplace_back(id->as_string());
    if (const Json* id = body.if_contains("sampling_session_id"))
      samplers_.emplace_back(id->as_string());
    return true;
  }
  void ask(RunOf& run, const Numbered& next) {
    if (ask(next.request)) run.accepted.emplace(next.seq_id, next.request);
  }

  Request request_of(const RunOf& run, int64_t seq) {
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
        return json_request("optim_step", id);  // wrong: without adam_params
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
      ask(run, run.late.back());
      run.late.pop_back();
      return;
    }
    const int64_t seq = run.next++;
    const Numbered next{seq, request_of(run, seq)};
    if (draw(5) == 0)
      run.late.insert(run.late.begin(), next);
    else
      ask(run, next);
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
      ask(json_request("create_sampling_session", body));
      return;
    }
    ask(json_request("load_weights", {{"session_id", s},
                                      {"model_seq_id", number},
                                      {"path", path},
                                      {"optimizer", draw(2) == 0}}));
    if (core_->domain().run(s + ":train:" + std::to_string(number)))
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
      return (void)ask(json_request("sessions/" + one_of(runs_).session + "/finish", JsonObject{}));
    if (what == 16) return settle();
    if (what == 17 && draw(3) == 0) return crash();
    if (what == 18) holds_ = !holds_;
    if (what == 20) change_disk();
    if (what == 19 && !sent_.empty()) {
      const Request again = one_of(sent_);
      ask(again);
    }
  }

  void crash() {
    core_->close();
    holds_ = false;
    begin();
  }
  void begin() {
    restart();
    executor_->on_batch = [this] {
      for (int i = 0; holds_ && i < 30; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    // Beside later operations, as slow as a disk.
    executor_->on_write = [this] {
      for (int i = 0; holds_ && i < 10; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
  }

  // All that clients can see of a service on this state, in order.
  std::vector<std::string> seen_in(const fs::path& state) {
    end();
    clear(dir_.path());
    fs::copy(state, dir_.path(), fs::copy_options::recursive);
    restart();
    settle();
    std::vector<std::string> out;
    const auto note = [&](const std::string& what, const Request& r) {
      const int64_t num_held = core_->futures().num_held();
      const auto told = send(r);
      if (core_->futures().num_held() == num_held) {  // a poll may wait for ever
        EXPECT_TRUE(until([&] { return told->has_value(); }));
      }
      settle();
      out.push_back(what + " " +
                    (*told ? std::to_string((*told)->status) + " " + (*told)->body : "waits"));
    };
    const auto all_promises = [&] {
      for (const std::string& id : promises_) {
        note(id, json_request("retrieve_future", {{"request_id", id}}));
        const auto* made = core_->domain().future(id);
        out.push_back(made ? std::to_string(made->number) : "gone");
      }
      for (const RunOf& run : runs_) {
        out.push_back(run.id);
        if (core_->domain().run(run.id)->is_made)
          for (const std::string& what : all_done(run.id)) out.push_back(what);
      }
    };
    all_promises();
    for (const RunOf& run : runs_) {
      Request r = json_request("training_runs/" + run.id, JsonObject{});
      r.method = "GET";
      note(run.id, r);
      // In ms, which the answer does not tell.
      out.push_back(std::to_string(core_->domain().run(run.id)->last_ms));
    }
    for (const auto& [path, checkpoint] : core_->domain().checkpoints())
      note(path, json_request("weights_info", {{"tinker_path", "tinker://" + path}}));
    for (const Request& r : sent_) note("again " + r.path, r);
    for (const RunOf& run : runs_)
      for (const Numbered& late : run.late) note("late " + late.request.path, late.request);
    all_promises();
    out.push_back(std::to_string(core_->domain().num_futures()));
    return out;
  }
  // With the options of each step.
  std::vector<std::string> all_done(const std::string& run) {
    settle();
    std::vector<engine::Operation> one;
    one.emplace_back(engine::Inspect{run});
    const auto result =
        std::get<engine::InspectResult>(dispatcher_->submit(std::move(one))[0].get());
    std::vector<std::string> out;
    for (const auto& t : result.tensors)
      out.push_back(t.name.starts_with("step") ? t.name : "train");
    return out;
  }

  // The state of runs that got the same requests in the order of their numbers, one after another,
  // up to the first that did not come.
  std::vector<std::vector<std::string>> undisturbed(const std::vector<RunOf>& runs) {
    end();
    clear(dir_.path());
    restart();
    std::vector<std::vector<std::string>> out;
    for (const RunOf& as : runs) {
      const std::string id = ServiceTest::run();
      for (int64_t seq_id = 1; as.accepted.contains(seq_id); ++seq_id) {
        Request next = as.accepted.at(seq_id);
        next.body.replace(next.body.find(as.id), as.id.size(), id);
        outcome(answer(next));
      }
      out.push_back(all_done(id));
    }
    return out;
  }
  static std::string bytes_of(const fs::path& journal) {
    core::State state = core::domain_in(journal).state(1, 1);
    state.removing.clear();  // a folder that is gone is not journalled
    ByteWriter writer;
    writer.put(state);
    return writer.take();
  }

  std::mt19937 random_{1};
  ScratchDir archive_, copies_;
  std::atomic<bool> holds_ = false;
  int num_renames_ = 0;
  std::vector<RunOf> runs_;
  std::vector<std::string> samplers_, promises_;
  std::vector<Request> sent_;
};

TEST_F(Anything, EndsAsIfNothingHadDisturbedIt) {
  int64_t num_states = 0;
  for (unsigned seed = 1; seed <= 25; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    end();
    for (const fs::path& dir : {dir_.path(), archive_.path(), copies_.path()}) clear(dir);
    runs_.clear(), samplers_.clear(), promises_.clear(), sent_.clear();
    random_.seed(seed);
    options_.saving.again_seconds = draw(2) * 1000;
    options_.saving.journal_bytes = draw(3) == 0 ? 3000 : 1;
    options_.futures.max_result_bytes = draw(2) * 1000000;
    options_.queues.max_bytes = draw(2) == 0 ? 1 : 1 << 30;
    begin();
    for (int i = 0; i < 2; ++i) {
      const std::string s = session();
      runs_.push_back({.id = s + ":train:0", .session = s});
      ask(json_request("create_model", model(s)));
    }
    for (int i = 0; i < 150; ++i) act();
    holds_ = false;
    crash();
    settle();
    std::vector<std::vector<std::string>> trained;
    for (size_t i = 0; i < 2; ++i) trained.push_back(all_done(runs_[i].id));
    num_states += core_->num_states() + is_there(core::state_file(dir_ / "journal"));
    end();
    link_segments(dir_ / "journal", archive_ / "journal");
    const auto copy = fs::copy_options::recursive;
    fs::copy(dir_.path(), copies_ / "truncated", copy);
    fs::copy(dir_.path(), copies_ / "whole", copy);
    fs::remove_all(copies_ / "whole/journal");
    fs::copy(archive_ / "journal", copies_ / "whole/journal", copy);
    ASSERT_EQ(bytes_of(copies_ / "whole/journal"), bytes_of(copies_ / "truncated/journal"));
    const auto whole = seen_in(copies_ / "whole");
    const auto truncated = seen_in(copies_ / "truncated");
    ASSERT_EQ(whole.size(), truncated.size());
    for (size_t i = 0; i < whole.size(); ++i) ASSERT_EQ(whole[i], truncated[i]) << i;
    ASSERT_EQ(trained, undisturbed({runs_[0], runs_[1]}));
  }
  EXPECT_GT(num_states, 20);
}

}  // namespace
}  // namespace twinkle::server
