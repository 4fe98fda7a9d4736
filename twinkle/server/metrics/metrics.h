// What a running service counts, for Prometheus (text format 0.0.4). Used by the service's thread
// alone.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace twinkle::server {

class Services;

class Metrics {
 public:
  // A request that was answered; `route` is its pattern in routes.def, or "none".
  void count(const std::string& route, int status) { ++requests_[{route, status}]; }
  std::string text(const Services& services) const;

 private:
  std::map<std::pair<std::string, int>, int64_t> requests_;
};

}  // namespace twinkle::server
