// What a tenant has of what its quota limits by amount: runs, adapters, bytes on disk. What would
// go beyond is refused before the request is journalled, and the refusal is journalled with it, so
// that a replay refuses the same whatever the limits are by then. Used by the service's thread
// alone.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "twinkle/server/history/records.h"
#include "twinkle/store/keys/quota.h"

namespace twinkle::server {

class Services;

enum class Amount { kNothing, kRun, kAdapter, kCheckpoint };

class Amounts {
 public:
  explicit Amounts(std::filesystem::path state) : state_(std::move(state)) {}

  // Held from the decision until the request's handler has run, and then, of what is saved, until
  // that has ended: it is there by then, or will not be.
  class Pending;

  // Why one more is refused, or "": the limit, what there is, and the remedy.
  std::string refusal(Services& services, const std::string& owner, Amount amount) const;
  // Counts as one of the owner's until it is dropped.
  std::shared_ptr<Pending> pend(const std::string& owner, Amount amount);

  // Before refusal(): has the disk's thread measure what was changed since, or of a run all once
  // after a start, where a limit of bytes counts, and then calls `then`; at once where there is
  // nothing to measure. Each tenant has one measurement at a time: who comes meanwhile waits for
  // its end, and has another only if something was changed after that began.
  void measure(Services& services, const std::string& owner, Amount amount,
               std::function<void()> then);
  // A folder of the run was saved or removed: it is measured, again where it was before; what else
  // the run has is not.
  void changed(const std::string& run, const std::filesystem::path& folder) {
    on_disk_[run].changed.insert(folder);
  }
  // Those of its versions that have not been measured.
  void saved(const Snapshotted& snapshot);

  int64_t num_runs(const Services& services, const std::string& owner) const;
  int64_t num_adapters(const Services& services, const std::string& owner) const;
  // Of checkpoints, also those that were overwritten, and of snapshots, as far as they have been
  // measured.
  int64_t num_bytes(const Services& services, const std::string& owner) const;

 private:
  using Counts = std::map<std::pair<std::string, Amount>, int64_t>;
  // What a run has on disk, a sum that goes on: a long run has thousands of folders.
  struct OnDisk {
    bool is_walked = false;                            // all folders, since the start
    std::map<std::filesystem::path, int64_t> folders;  // as measured
    std::set<std::filesystem::path> changed;           // to be measured
    int64_t bytes = 0;                                 // of all folders
  };

  struct Measured;

  int64_t pending(const std::string& owner, Amount amount) const;
  void take(const Measured& measured);

  const std::filesystem::path state_;
  const std::shared_ptr<Counts> pending_ = std::make_shared<Counts>();
  std::map<std::string, OnDisk> on_disk_;  // by run
  // By owner for whom the disk's thread measures: who goes on at its end.
  std::map<std::string, std::vector<std::function<void()>>> waiting_;
};

class Amounts::Pending {
 public:
  Pending(std::shared_ptr<Counts> counts, const std::string& owner, Amount amount)
      : counts_(std::move(counts)), what_(owner, amount) {
    ++(*counts_)[what_];
  }
  ~Pending() {
    if (--(*counts_)[what_] == 0) counts_->erase(what_);
  }
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

 private:
  const std::shared_ptr<Counts> counts_;
  const std::pair<std::string, Amount> what_;
};

}  // namespace twinkle::server
