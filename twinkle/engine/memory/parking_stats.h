// Parking statistics. Plain values.
#pragma once
#include <cstdint>
#include <string>

namespace twinkle::engine {

struct ParkingStats {
  int64_t resident_bytes = 0;  // now
  int64_t limit = 0;           // on them; 0: none
  int64_t num_parked = 0;      // tenants, now
  int64_t num_returns = 0;     // so far
  int64_t num_failures = 0;    // writes that failed so far; those tenants stayed in memory
  std::string last_failure;
};

}  // namespace twinkle::engine
