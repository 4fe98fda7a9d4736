// The limits of a tenant of the service, and how it stands among the others.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>

#include "twinkle/base/fields.h"

namespace twinkle::store {

// A limit of 0 means none.
struct Quota {
  std::string tenant;
  // engine::Create's, of the runs and samplers that it makes from then on, but for runs of a key
  // that has its own.
  double weight = 1.0;
  int32_t priority = 0;
  // Rates: what is beyond waits.
  int64_t tokens_per_minute = 0;
  double compute_seconds_per_minute = 0;
  // Amounts: what would go beyond is refused.
  int64_t max_runs = 0;      // runs of sessions that have not finished
  int64_t max_adapters = 0;  // that are kept to be sampled
  int64_t max_disk = 0;      // bytes of checkpoints and snapshots

  bool operator==(const Quota&) const = default;
  static constexpr auto fields() {
    return std::tuple{field(1, "tenant", &Quota::tenant),
                      field(2, "weight", &Quota::weight),
                      field(3, "priority", &Quota::priority),
                      field(4, "tokens_per_minute", &Quota::tokens_per_minute),
                      field(5, "compute_seconds_per_minute", &Quota::compute_seconds_per_minute),
                      field(6, "max_runs", &Quota::max_runs),
                      field(7, "max_adapters", &Quota::max_adapters),
                      field(8, "max_disk", &Quota::max_disk)};
  }
};

using ChangeQuota = std::function<void(Quota&)>;

}  // namespace twinkle::store
