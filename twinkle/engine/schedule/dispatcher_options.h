// Options of Dispatcher (dispatcher.h), without what it includes.
#pragma once
#include "twinkle/base/fields/options.h"

namespace twinkle::engine {

struct DispatcherOptions {
  int64_t token_budget = 4096;
  int64_t max_queued = 1024;
  int64_t max_queued_total = 16384;
  int64_t max_queued_bytes = int64_t{4} << 30;
  int64_t max_queued_bytes_total = int64_t{8} << 30;
  double sampling_share = 0.5;
  double gather_ms = 1.0;

  static constexpr auto fields() {
    using O = DispatcherOptions;
    return std::tuple{
        option("token_budget", &O::token_budget, between(1, kMostTokens),
               "tokens of one training batch; larger operations take several"),
        option("max_queued", &O::max_queued, between(1, kMostTokens),
               "operations of one tenant that have not ended; one more is refused as busy"),
        option("max_queued_total", &O::max_queued_total, between(1, kMostTokens),
               "operations of all tenants that have not ended"),
        option("max_queued_bytes", &O::max_queued_bytes, between(1, kMostBytes),
               "bytes of memory of one tenant's operations that have not ended, and of its results "
               "and streamed tokens until they are taken; until it is there a result counts with "
               "the most that it may take"),
        option("max_queued_bytes_total", &O::max_queued_bytes_total, between(1, kMostBytes),
               "the same of all tenants, in bytes"),
        option("sampling_share", &O::sampling_share, strictly_between(0, 1),
               "sampling's share of the time while training waits too"),
        option("gather_ms", &O::gather_ms, between(0, 1000),
               "milliseconds that a batch waits at most for tenants of the last one that have "
               "nothing queued, so that clients that wait for each result share the next batch "
               "too; 0: never")};
  }
};

}  // namespace twinkle::engine
