// Which request the sampler takes next: that of the tenant which holds the fewest sequences for its
// weight; of a higher priority first. Every running sequence gets one token a step, so sequences
// held are a tenant's share of the tokens, known before it is known how long a request will be.
// Plain data: no sampler, no thread. The same calls give the same answers.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "twinkle/engine/schedule/scheduler.h"

namespace twinkle::engine {

// Request `index` of a Sample.
struct Admitted {
  int64_t id;
  size_t index;
};

class Admission {
 public:
  // Sequences that may run at a time; a request is taken whole when there is room for one.
  explicit Admission(int64_t max_sequences) : max_(max_sequences) {}

  // `sizes`: sequences of each request, at least one each.
  void push(const std::string& tenant, Share share, int64_t id, std::vector<int64_t> sizes);
  // The next request to start, none when the sequences that run are enough or nothing waits.
  std::optional<Admitted> next();
  // A request that was taken has ended.
  void release(const Admitted& request);
  // With what it holds. False: it is not here.
  bool remove(int64_t id);

  // The Sample of which a request was taken last.
  int64_t newest() const;

  // Of Samples that were pushed and not removed.
  size_t size() const { return samples_.size(); }
  int64_t num_running() const { return running_; }

 private:
  struct Sample {
    std::string tenant;
    std::vector<int64_t> sizes;
    size_t next = 0;
    int64_t held = 0;
    uint64_t last_turn = 0;
  };
  struct Tenant {
    Share share;
    std::deque<int64_t> waiting;  // Samples with requests that were not taken
    int64_t held = 0;
    size_t num_samples = 0;
    uint64_t last_turn = 0;
  };
  void give_back(Sample& sample, int64_t sequences);

  int64_t max_, running_ = 0;
  uint64_t turn_ = 0;
  std::map<int64_t, Sample> samples_;
  std::map<std::string, Tenant> tenants_;
};

}  // namespace twinkle::engine
