// For tests: a listener of a Sample, which keeps the tokens it was given as completions.
#pragma once
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "twinkle/engine/protocol/operation.h"
#include "twinkle/engine/protocol/result.h"
#include "twinkle/engine/schedule/hooks.h"

namespace twinkle::engine {

// Outlives the Sample.
class RecordingListener {
 public:
  SampleHooks hooks() {
    return {[this](std::span<const TokenEvent> events) { on_event(events); }};
  }

  // Where the result differs from the recorded tokens; else empty.
  std::string difference(const SampleResult& result) {
    const std::lock_guard lock(mutex_);
    std::string out = fault_;
    for (size_t p = 0; p < result.completions.size(); ++p) {
      for (size_t s = 0; s < result.completions[p].size(); ++s) {
        const Completion &want = result.completions[p][s], &got = completions_[{p, s}];
        if (got.tokens != want.tokens || got.logprobs != want.logprobs ||
            got.stop_reason != want.stop_reason)
          out += "\nrecorded otherwise: " + std::to_string(p) + " " + std::to_string(s);
      }
    }
    return out;
  }

  size_t num_tokens() {
    const std::lock_guard lock(mutex_);
    size_t n = 0;
    for (const auto& [place, c] : completions_) n += c.tokens.size();
    return n;
  }

 private:
  void on_event(std::span<const TokenEvent> events) {
    const std::lock_guard lock(mutex_);
    for (const TokenEvent& e : events) {
      Completion& c = completions_[{e.prompt, e.sample}];
      if (!c.stop_reason.empty()) fault_ += "\na token behind the last one";
      c.tokens.push_back(e.token);
      c.logprobs.push_back(e.logprob);
      c.stop_reason = e.stop_reason;
    }
  }

  std::mutex mutex_;
  std::map<std::pair<size_t, size_t>, Completion> completions_;
  std::string fault_;
};

}  // namespace twinkle::engine
