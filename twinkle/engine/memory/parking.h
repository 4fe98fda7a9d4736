// Keeps the tenants' state in memory (weights, published versions, gradients, optimizer) within a
// limit: the state of those used least recently, and of those named to it, waits in files and comes
// back, bit for bit, at their next use. Its work for an operation does not depend on the number of
// tenants. Knows no operation and no schedule. The engine's thread, except for stats().
#pragma once
#include <atomic>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "twinkle/base/file.h"
#include "twinkle/base/guarded.h"
#include "twinkle/base/memory/memory_limit.h"
#include "twinkle/engine/memory/parking_options.h"
#include "twinkle/engine/memory/parking_stats.h"
#include "twinkle/engine/tenant.h"

namespace twinkle::engine {

class Parking {
 public:
  // `memory`: bytes of it where tenants' state is, that the process may use. Removes the folders of
  // killed processes in the directory: a living one locks its own. Error kInvalid: an option
  // outside its limits, a limit without a directory, a directory that can't be written to.
  explicit Parking(const ParkingOptions& options, int64_t memory = memory_limit());
  ~Parking();  // its folder goes, with what is parked there
  Parking(const Parking&) = delete;
  Parking& operator=(const Parking&) = delete;

  // To be called before a tenant is used. It stays in memory until the next end_round(); a parked
  // one comes back, and others make room. Error kInternal: its file is gone or has changed; the
  // tenant stays parked, and the next use tries again.
  void use(Tenant& tenant);
  // The state of one that is here has another size than when its round ended.
  void count(const Tenant& tenant);
  // Before the tenant is destroyed: its file goes. Does not throw.
  void forget(const Tenant& tenant);
  // Between two operations or batches: parks what exceeds the limit, but none of `held`, which are
  // in the middle of an operation. A tenant whose parking fails, for lack of disk or memory, stays
  // in memory until after its next use, and is counted.
  void end_round(const std::set<const Tenant*>& held = {});

  // Between two operations: parks a tenant of which nothing is expected for long, whatever the
  // limit, and returns its bytes; 0: it is parked already, is in use, or its parking failed, which
  // is counted.
  int64_t park_now(const Tenant& tenant);

  // Bytes of the tenant's state, in memory or parked, as its last round left it.
  int64_t bytes_of(const Tenant& tenant) const;
  // Bytes in memory of tenants that Samples read, or that are `held`.
  int64_t bytes_in_use(const std::set<const Tenant*>& held = {}) const;
  // Bytes that may be in memory; 0: any number.
  int64_t limit() const { return limit_; }
  bool has_room(int64_t bytes) const { return limit_ == 0 || resident_bytes_ + bytes <= limit_; }

  bool is_on() const { return !folder_.empty(); }
  ParkingStats stats() const;  // any thread

 private:
  struct Shape {
    std::vector<int64_t> sizes;  // one for each tensor
    at::ScalarType type;
    at::Device device;
    size_t index;  // among the tenant's
  };
  struct Place {
    Tenant* tenant = nullptr;
    uint64_t used = 0;   // the count of uses at its last one
    uint64_t round = 0;  // when it was last used
    int64_t bytes = 0;   // bytes of its state, in memory or parked
    std::filesystem::path file;
    std::vector<Shape> shapes;  // not empty: parked
    uint64_t checksum = 0;
  };
  template <class Busy>
  void make_room(int64_t bytes, Busy&& busy);
  void count(Place& place);
  enum class Parked { kYes, kInUse, kFailed };
  Parked park(Place& place);
  void bring_back(Place& place);
  void count_failure(const char* what) noexcept;

  const int64_t limit_;  // bytes; 0: none
  std::filesystem::path folder_;
  FileHandle lock_;  // on the folder
  std::map<const Tenant*, Place> places_;
  // By their last use: that hold memory, but for those whose parking failed since.
  std::map<uint64_t, Place*> resident_;
  std::vector<Place*> used_;  // since the last end_round()
  uint64_t num_uses_ = 0, round_ = 1, num_files_ = 0;
  std::set<const Tenant*> held_;

  // As ParkingStats says of them.
  std::atomic<int64_t> resident_bytes_ = 0, num_parked_ = 0, num_returns_ = 0, num_failures_ = 0;
  mutable Mutex mutex_;
  std::string last_failure_ GUARDED_BY(mutex_);
};

}  // namespace twinkle::engine
