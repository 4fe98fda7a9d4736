// Options of Parking (parking.h), without what it includes.
#pragma once
#include <string>

#include "twinkle/base/fields/options.h"

namespace twinkle::engine {

struct ParkingOptions {
  static constexpr int64_t kHalf = -1;  // half of the memory that the process may use

  int64_t resident_bytes =
      kHalf;              // a running tenant stays in memory even if it exceeds it by itself
  std::string directory;  // a folder of its own is made there, and goes with it

  static constexpr auto fields() {
    using O = ParkingOptions;
    return std::tuple{
        option("resident_bytes", &O::resident_bytes, between(kHalf, kMostBytes),
               "bytes of memory for the state of all adapters; beyond them tenants that rest are "
               "parked in files and come back, bit for bit, with their next operation; 0: no "
               "limit; -1: half of the memory that the process may use, the limit of its control "
               "group counted, where there is a park_directory [that half]"),
        option("park_directory", &O::directory, any(),
               "folder for parked tenants, needed with resident_bytes; of twinkle serve, unless it "
               "is named, a folder of its state")};
  }
};

}  // namespace twinkle::engine
