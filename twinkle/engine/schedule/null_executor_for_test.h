// For tests: an Executor without a model. A tenant's state is the list of what has been done to it;
// a Sample takes one step for every token that its longest request asks for, and its listener hears
// of an 'a' for each. Runs under the thread
// sanitizer.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/engine/schedule/executor.h"

namespace twinkle::engine {

// Knobs by an operation's text: the loss "fail" makes a ForwardBackward end with an error at its
// last sequence, the optimizer "fail" a Step; weights named "base" are the base model's.
class NullExecutor : public Executor {
 public:
  std::function<void()> on_batch, on_step;  // called in the middle of each
  int64_t failing_steps = 0;                // that throw, from now on
  std::atomic<int64_t> layers = 0;          // that the next batch takes, 0.1 ms each, ...
  std::atomic<int64_t> num_layers = 0;      // ... and those that were taken
  int64_t result_bytes = 0;                 // that each result can take
  std::function<double()> clock;            // seconds; empty: the steady one
  std::function<void()> on_write;           // called off the thread by each Save, which ends later
  std::atomic<int64_t> num_batches = 0, num_steps = 0, num_parks = 0;
  std::atomic<bool> no_memory = false;           // for a ForwardBackward, at its last sequence
  std::atomic<bool> no_forward_can_use = false;  // the weights: a Save must be as_is
  std::map<std::string, Share> shares;           // shares of tenants, as they were created
  std::vector<std::vector<Work>> batches;  // read when the dispatcher is gone, or from on_batch

  bool changes_base(const Operation& operation) override {
    return std::holds_alternative<Step>(operation) && tenant_of(operation) == "base";
  }

  bool joins(const Operation& operation) const override {
    const auto* op = std::get_if<ForwardBackward>(&operation);
    return op && op->loss != "by itself";
  }

  int64_t max_result_bytes(const Operation&, bool) const override { return result_bytes; }
  double seconds() const override { return clock ? clock() : Executor::seconds(); }

  bool waits(const Operation& operation) override {
    const auto* create = std::get_if<Create>(&operation);
    return create && writing_.contains(create->directory);
  }
  FirstPart first_part(const Operation& operation) override {
    const auto* save = std::get_if<Save>(&operation);
    if (!save || !on_write) return {};
    const auto place = writing_.insert(save->directory);
    // Given back without a lock: on the dispatcher's thread.
    const std::shared_ptr<void> held(this, [this, place](void*) { writing_.erase(place); });
    return {[this, save = *save, state = state_of(save->tenant),
             held](const Writers& writers) -> Result {
      if (writers.begin) writers.begin(save.directory);
      on_write();
      if (!writers.folder.empty()) return Done{};
      if (writers.wait) writers.wait();
      check(save);
      write(save, state);
      return SaveResult{save.directory};
    }};
  }

  Result run(const Operation& operation, Prepared*) override {
    const std::string& name = tenant_of(operation);
    if (const auto* create = std::get_if<Create>(&operation)) {
      require(!state_.contains(name), Code::kConflict, "null: '", name, "' exists");
      state_[name] = saved_in(create->directory);
      shares[name] = {create->weight, create->priority};
      return Done{};
    }
    auto& state = state_of(name);
    if (std::holds_alternative<Delete>(operation)) {
      state_.erase(name);
    } else if (const auto* step = std::get_if<Step>(&operation)) {
      require(name != "base" || (samples_.empty() && running_.empty()), Code::kInternal,
              "null: the base is stepped while it is read");
      require(step->optimizer != "fail", Code::kInvalid, "null: failed");
      state.push_back("step " + step->options);
      return StepResult{};
    } else if (const auto* save = std::get_if<Save>(&operation)) {
      check(*save);
      write(*save, state);
    } else if (std::holds_alternative<Park>(operation)) {
      ++num_parks;
    } else if (std::holds_alternative<Publish>(operation)) {
      return PublishResult{};
    } else if (std::holds_alternative<Inspect>(operation)) {
      InspectResult out;
      for (const std::string& done : state) out.tensors.push_back({done, {}, {}});
      return out;
    }
    return Done{};
  }

  void run_batch(std::span<const Work> batch, const std::atomic<bool>& stop,
                 BatchOutcome& out) override {
    ++num_batches;
    batches.emplace_back(batch.begin(), batch.end());
    if (on_batch) on_batch();
    for (; layers > 0 && !stop; ++num_layers, --layers)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    if (stop) throw std::runtime_error("null: stopped");
    out.num_passes = 1;
    for (const Work& work : batch) {
      const auto* op = std::get_if<ForwardBackward>(work.operation);
      const auto& sequences = op ? op->sequences : std::get<Forward>(*work.operation).sequences;
      try {
        auto& state = state_of(tenant_of(*work.operation));
        auto [it, fresh] =
            running_.try_emplace(work.id, TrainingOp{work.operation, state.size(), 0});
        require(it->second.done == work.first, Code::kInternal, "null: out of order");
        it->second.done = work.last;
        for (size_t s = work.first; s < work.last; ++s)
          state.push_back(std::to_string(work.id) + "/" + std::to_string(s));
        if (work.last < sequences.size()) continue;
        require(!op || op->loss != "fail", Code::kInvalid, "null: failed");
        if (op && no_memory) throw std::bad_alloc();
        out.ended.push_back({work.id, nullptr});
      } catch (const std::exception&) {
        out.ended.push_back({work.id, std::current_exception()});
        undo(work.id);
      }
    }
  }

  void start(int64_t id, const Sample& sample, Share, SampleHooks hooks, Prepared*) override {
    state_of(sample.tenant);
    require(sample.params[0].top_p > 0, Code::kInvalid, "null: refused");
    samples_[id] = {.left = sample.params[0].max_tokens, .hooks = std::move(hooks)};
  }
  std::vector<Ended> step() override {
    ++num_steps;
    if (on_step) on_step();
    if (failing_steps > 0) {
      --failing_steps;
      fail(Code::kInternal, "null: no memory");
    }
    std::vector<Ended> out;
    for (auto& [id, sample] : samples_) {
      if (sample.left <= 0) continue;
      ++sample.done;
      const TokenEvent event{.token = 'a', .stop_reason = sample.left == 1 ? "length" : ""};
      if (sample.hooks.on_tokens) sample.hooks.on_tokens({&event, 1});
      if (--sample.left == 0) out.push_back({id, nullptr});
    }
    return out;
  }
  int64_t newest() const override { return samples_.empty() ? 0 : samples_.rbegin()->first; }
  int64_t num_generated(int64_t id) const override {
    const auto found = samples_.find(id);
    return found == samples_.end() ? 0 : found->second.done;
  }

  Result commit(int64_t id) override {
    if (running_.erase(id)) return ForwardResult{};
    samples_.erase(id);
    return SampleResult{.completions = {{Completion{.tokens = {1, 2, 3}}}},
                        .prompts = std::vector<sampler::PromptScores>(1)};
  }
  void undo(int64_t id) override {
    const auto it = running_.find(id);
    if (it == running_.end()) {
      samples_.erase(id);
      return;
    }
    state_of(tenant_of(*it->second.operation)).resize(it->second.before);
    running_.erase(it);
  }

 private:
  struct TrainingOp {
    const Operation* operation;
    size_t before, done;
  };
  void check(const Save& save) const {
    // As an engine refuses what is no checkpoint's.
    require(!std::filesystem::exists(std::filesystem::path(save.directory) / "foreign"),
            Code::kInvalid, "null: the folder holds 'foreign'");
    require(save.as_is || !no_forward_can_use, Code::kInvalid, "null: weights beyond 1e18");
  }
  static void write(const Save& save, const std::vector<std::string>& state) {
    std::filesystem::create_directories(save.directory);
    std::ofstream out(std::filesystem::path(save.directory) / "null");
    for (const std::string& done : state) out << done << '\n';
  }
  static std::vector<std::string> saved_in(const std::filesystem::path& directory) {
    std::vector<std::string> out;
    require(!std::filesystem::exists(directory / "damaged"), Code::kInvalid,
            "null: ", directory.string(), " is damaged");
    std::ifstream in(directory / "null");
    for (std::string line; std::getline(in, line);) out.push_back(line);
    return out;
  }
  std::vector<std::string>& state_of(const std::string& name) {
    const auto it = state_.find(name);
    require(it != state_.end(), Code::kNotFound, "null: no tenant '", name, "'");
    return it->second;
  }

  std::map<std::string, std::vector<std::string>> state_;
  std::map<int64_t, TrainingOp> running_;
  struct Sampled {  // tokens
    int64_t left = 0, done = 0;
    SampleHooks hooks = {};
  };
  std::map<int64_t, Sampled> samples_;
  std::multiset<std::string> writing_;  // folders
};

}  // namespace twinkle::engine
