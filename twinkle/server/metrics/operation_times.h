// How long the engine's operations wait and compute, by their kind, and the last loss of each run:
// of the runs that were trained last, so that /metrics stays short. Any thread.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

#include "twinkle/engine/protocol/operation.h"
#include "twinkle/engine/schedule/accepted.h"
#include "twinkle/server/metrics/histogram.h"

namespace twinkle::server {

class OperationTimes {
 public:
  static constexpr size_t kMaxRuns = 100;

  // For an operation that is submitted now: counts how it ends, and then calls `on_done`. Outlives
  // the engine.
  engine::OnDone watch(const engine::Operation& operation, engine::OnDone on_done);
  void write(std::ostream& out) const;

 private:
  struct Times {
    Histogram waiting, computing;
  };
  struct Run {
    int64_t number = 0;  // its last forward_backward's among all
    std::optional<double> loss = {};
  };

  void trains(const std::string& run);
  void ended(const std::string& run, const engine::Outcome& outcome);

  mutable std::mutex mutex_;
  std::map<std::string_view, Times> times_;
  std::map<std::string, Run> runs_;
  int64_t num_trainings_ = 0;
};

}  // namespace twinkle::server
