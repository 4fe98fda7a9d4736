// Options of Parking (parking.h), without what it includes.
#pragma once
#include <string>

#include "twinkle/base/fields/options.h"

namespace twinkle::engine {

struct ParkingOptions {
  int64_t resident_bytes = 0;  // running tenants stay in memory even if they exceed it
  std::string directory;       // a folder of its own is made there, and goes with it

  static constexpr auto fields() {
    using O = ParkingOptions;
    return std::tuple{
        option("resident_bytes", &O::resident_bytes, between(0, kMostBytes),
               "bytes of memory for the state of all adapters; beyond them tenants that rest are "
               "parked in files and come back, bit for bit, with their next operation; 0: no "
               "limit"),
        option("park_directory", &O::directory, any(),
               "folder for parked tenants, needed with resident_bytes; of twinkle serve, unless it "
               "is named, a folder of its state")};
  }
};

}  // namespace twinkle::engine
