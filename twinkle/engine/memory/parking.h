// Keeps what tenants hold in memory (weights, published versions, gradients, optimizer) within a
// limit: the state of those whose last use lies furthest back waits in files and comes back, bit
// for bit, at their next use. What it does for an operation does not depend on the number of
// tenants. Knows no operation and no schedule. The engine's thread's alone, but for stats().
#pragma once
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "twinkle/base/file.h"
#include "twinkle/engine/memory/parking_stats.h"
#include "twinkle/engine/tenant.h"

namespace twinkle::engine {

struct ParkingOptions {
  int64_t resident_bytes = 0;  // of all tenants' state; 0: no limit, nothing is ever parked. What
                               // runs stays in memory even when it alone exceeds it
  std::string directory;       // where to park: a folder of its own is made there
};

class Parking {
 public:
  // Removes what killed processes left in the directory: a living one locks its folder. Error
  // kInvalid: a limit below 0 or without a directory, a directory that can't be written to.
  explicit Parking(const ParkingOptions& options);
  ~Parking();  // its folder goes, with what is parked there
  Parking(const Parking&) = delete;
  Parking& operator=(const Parking&) = delete;

  // To be called before anything is done with a tenant. It stays in memory until the next
  // end_round(); what was parked comes back, and others make room. Error kInternal: its file is
  // gone or has changed; the tenant stays parked, and the next use tries again.
  void use(Tenant& tenant);
  // Before the tenant is destroyed: its file goes.
  void forget(const Tenant& tenant);
  // Between two pieces of work: parks what exceeds the limit, but none of `held`, whose work goes
  // on. Parking that fails, for want of disk or memory, leaves its tenant in memory until it was
  // used again, and is counted.
  void end_round(const std::set<const Tenant*>& held = {});

  bool has_limit() const { return !folder_.empty(); }
  ParkingStats stats() const;  // any thread

 private:
  struct Shape {
    std::vector<int64_t> sizes;  // of a tensor
    at::ScalarType type;
    at::Device device;
    size_t index;  // among the tenant's
  };
  struct Place {
    Tenant* tenant = nullptr;
    uint64_t used = 0;   // the count of uses at its last one
    uint64_t round = 0;  // of its last use
    int64_t bytes = 0;   // of its state, in memory or parked
    std::filesystem::path file;
    std::vector<Shape> shapes;  // not empty: parked
    uint64_t checksum = 0;
  };
  template <class Busy>
  void make_room(int64_t bytes, Busy&& busy);
  enum class Parked { kYes, kInUse, kFailed };
  Parked park(Place& place);
  void bring_back(Place& place);
  void report();

  const ParkingOptions options_;
  std::filesystem::path folder_;
  FileHandle lock_;  // on the folder
  std::map<const Tenant*, Place> places_;
  // By their last use: that hold memory, but for those whose parking failed since.
  std::map<uint64_t, Place*> resident_;
  std::vector<Place*> used_;  // since the last end_round()
  uint64_t num_uses_ = 0, round_ = 1, num_files_ = 0;
  std::set<const Tenant*> held_;
  ParkingStats now_;

  mutable std::mutex mutex_;
  ParkingStats reported_;  // under the mutex
};

}  // namespace twinkle::engine
