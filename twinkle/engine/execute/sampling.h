// The Samples that have begun: their requests inside the sampler, and their results so far. The
// engine's thread, except for stats() and forget_prefixes().
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "twinkle/base/guarded.h"
#include "twinkle/engine/execute/sampling_stats.h"
#include "twinkle/engine/schedule/executor.h"
#include "twinkle/lora/pool.h"
#include "twinkle/sampler/sampler.h"

namespace twinkle::engine {

struct Weights {
  lora::AdapterRef adapter;  // undefined: only the base model
  uint64_t version;          // as sampler::Request's
};

// Who hears of a Sample's tokens, and who reads them for its stop strings.
struct Listening {
  SampleHooks hooks;
  Decode decode;
};

class Sampling {
 public:
  // The sampler, and its cache, exist from the first Sample on. The decoder outlives it, and so
  // does `comm`, as of sampler::Sampler.
  Sampling(model::Decoder& decoder, const sampler::SamplerOptions& options,
           std::vector<int32_t> eos_ids, mesh::Comm& comm = mesh::null_comm())
      : decoder_(decoder), options_(options), eos_ids_(std::move(eos_ids)), comm_(comm) {}

  // `weights` stay as they are until the Sample has ended. Error kInvalid: a request is wrong; then
  // none is taken.
  void start(int64_t id, const Sample& sample, Share share, Weights weights, Listening listening);
  // As Executor says of them.
  std::vector<Ended> step();
  int64_t newest() const;
  int64_t num_generated(int64_t id) const;
  SampleResult commit(int64_t id);
  bool undo(int64_t id);  // false: it is not here

  // Samples that start from here on take no pages of earlier ones; of several ranks, once each of
  // them has asked. Any thread.
  void forget_prefixes() { ++num_asked_; }
  SamplingStats stats() const;  // as after the last of the above; any thread

 private:
  struct Begun {
    Weights weights;
    Listening listening;
    SampleResult result{};
    std::vector<int64_t> tickets{};            // the sampler's, by request
    size_t num_left = 0;                       // requests that have not ended
    std::vector<TokenEvent> pending_events{};  // since its listener was called last
    std::string error{};  // error of the first of its requests that failed, if one did
  };
  struct Place {
    int64_t id;
    size_t index;
  };
  void on_event(const sampler::Event& event);
  void finish(sampler::Outcome& outcome);
  void notify();
  void fail(int64_t id, std::exception_ptr error);
  void forget(std::span<const int64_t> tickets);
  void forget_if_asked();
  void report();

  model::Decoder& decoder_;
  const sampler::SamplerOptions options_;
  const std::vector<int32_t> eos_ids_;
  mesh::Comm& comm_;
  std::unique_ptr<sampler::Sampler> sampler_;
  std::map<int64_t, Begun> begun_;
  std::map<int64_t, Place> requests_;  // that have not ended, by ticket
  // Events and outcomes of the sampler's last step that step() has not handed on: when something
  // throws in between, such as for lack of memory, the next call goes on there.
  std::vector<sampler::Event> events_;
  std::vector<sampler::Outcome> outcomes_;
  size_t next_event_ = 0, next_outcome_ = 0;
  std::vector<Ended> out_;
  std::atomic<int64_t> num_asked_ = 0;  // to forget
  int64_t num_forgotten_ = 0;

  mutable Mutex mutex_;
  SamplingStats reported_ GUARDED_BY(mutex_);
};

}  // namespace twinkle::engine
