// The Samples that have begun: their requests inside the sampler, and what has come back. The
// engine's thread's alone.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "twinkle/engine/schedule/executor.h"
#include "twinkle/lora/pool.h"
#include "twinkle/sampler/runner.h"

namespace twinkle::engine {

struct Weights {
  lora::Pin adapter;  // of nothing: the base model alone
  uint64_t version;   // as sampler::Request's
};

class Sampling {
 public:
  // The sampler, and its cache, exist from the first Sample on. The decoder outlives it.
  Sampling(model::Decoder& decoder, const sampler::SamplerOptions& options)
      : decoder_(decoder), options_(options) {}

  // `weights` stay as they are until the Sample has ended. `decode` as Sampler's. Error kInvalid: a
  // request is wrong.
  void start(int64_t id, const Sample& sample, Share share, Weights weights,
             sampler::Decode decode);
  // As Executor says of them.
  void admit(const Admitted& request);
  StepOutcome step();
  SampleResult commit(int64_t id);
  bool undo(int64_t id);  // false: it is not here

 private:
  struct Begun {
    std::vector<sampler::Request> requests;
    Weights weights;
    sampler::Decode decode;
    SampleResult result;
    size_t num_left;                 // requests that have not ended
    std::vector<int64_t> tickets{};  // the sampler's, of those that were admitted
  };
  void settle(sampler::Outcome& outcome, StepOutcome& out);

  model::Decoder& decoder_;
  sampler::SamplerOptions options_;
  std::unique_ptr<sampler::Sampler> sampler_;
  std::map<int64_t, Begun> begun_;
  std::map<int64_t, Admitted> requests_;  // by ticket
};

}  // namespace twinkle::engine
