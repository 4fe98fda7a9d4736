// What a running service counts, for Prometheus (text format 0.0.4). Used by the service's thread
// alone.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "twinkle/server/metrics/histogram.h"
#include "twinkle/server/metrics/operation_times.h"

namespace twinkle::server {

class Services;

// The program that serves.
struct Build {
  std::string version, id, torch;
};

class Metrics {
 public:
  // A request that is answered now; `route` is its pattern in routes.def, or "none", and `came`
  // when its head was read.
  void count(const std::string& route, int status, std::chrono::steady_clock::time_point came);
  std::string text(const Services& services) const;

  OperationTimes operations;
  Build build;

 private:
  std::map<std::string, Histogram> times_;  // by route
  std::map<std::pair<std::string, int>, int64_t> requests_;
};

}  // namespace twinkle::server
