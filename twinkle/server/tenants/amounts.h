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
#include <string>
#include <vector>

#include "twinkle/base/json.h"
#include "twinkle/server/history/records.h"
#include "twinkle/server/service/backend.h"
#include "twinkle/store/keys/quota.h"

namespace twinkle::server {

class Services;
struct ModelFacts;
struct Run;

enum class Amount { kNothing, kRun, kAdapter, kCheckpoint };

// What a request adds: one of these, and bytes that its save takes, at most.
struct Addition {
  Amount amount = Amount::kNothing;
  int64_t bytes = 0;
};

// Bytes of the disk that a save of the run takes, at most.
int64_t most_bytes(const ModelFacts& model, const Run& run, bool optimizer);

// Error kInvalid: the run may come to hold more memory than the engine has for all adapters. What
// runs must be in memory, so that no other run's parking would make room for it.
void require_fits(const Backend& backend, const Run& run);

class Amounts {
 public:
  explicit Amounts(std::filesystem::path state) : state_(std::move(state)) {}

  // Held from the decision until the request's handler has run, and then, of what is saved, until
  // that has ended: it is there by then, or will not be.
  class Pending;

  // Of a request of this body; bytes are any where its handler refuses the body.
  static Addition addition(const Services& services, Amount amount, const Json& body);
  // Why it is refused, or "": the limit, what there is, and the remedy.
  std::string refusal(Services& services, const std::string& owner, Amount adds) const;
  // Counts as the owner's until it is dropped.
  std::shared_ptr<Pending> pend(const std::string& owner, const Addition& adds);

  // Before refusal(): has the disk's thread measure what was changed since, or of a run all once
  // after a start, where a limit of bytes counts, and then calls `then`; at once where there is
  // nothing to measure. Each tenant has one measurement at a time: who comes meanwhile waits for
  // its end, and has another only if something was changed after that began.
  void measure(Services& services, const std::string& owner, Amount amount,
               std::function<void()> then);
  // A folder of the run was saved or removed: it is measured, again where it was before; what else
  // the run has is not. Until then one that is new counts with `most` bytes.
  void changed(const std::string& run, const std::filesystem::path& folder, int64_t most = 0);
  // Those of its versions that have not been measured.
  void saved(const Snapshotted& snapshot);

  int64_t num_runs(const Services& services, const std::string& owner) const;
  int64_t num_adapters(const Services& services, const std::string& owner) const;
  // Of checkpoints, also those that were overwritten, and of snapshots, as far as they have been
  // measured.
  int64_t num_bytes(const Services& services, const std::string& owner) const;
  // That saves which were accepted may add to these, at most, until they are measured.
  int64_t num_coming_bytes(const Services& services, const std::string& owner) const;

 private:
  struct Held {
    int64_t num = 0, bytes = 0;
  };
  using Counts = std::map<std::pair<std::string, Amount>, Held>;
  using Most = std::map<std::filesystem::path, int64_t>;  // bytes, by folder
  // What a run has on disk, a sum that goes on: a long run has thousands of folders.
  struct OnDisk {
    bool is_walked = false;                            // all folders, since the start, ...
    bool is_walking = false;                           // ... or being so
    std::map<std::filesystem::path, int64_t> folders;  // as measured
    Most changed;                                      // to be measured, ...
    Most measuring;                                    // ... and being
    int64_t bytes = 0;                                 // of all folders
  };

  struct Measured;

  Held pending(const std::string& owner, Amount amount) const;
  void take(const Measured& measured);

  const std::filesystem::path state_;
  const std::shared_ptr<Counts> pending_ = std::make_shared<Counts>();
  std::map<std::string, OnDisk> on_disk_;  // by run
  // By owner for whom the disk's thread measures: who goes on at its end.
  std::map<std::string, std::vector<std::function<void()>>> waiting_;
};

class Amounts::Pending {
 public:
  Pending(std::shared_ptr<Counts> counts, const std::string& owner, const Addition& adds)
      : counts_(std::move(counts)), what_(owner, adds.amount), bytes_(adds.bytes) {
    Held& held = (*counts_)[what_];
    ++held.num;
    held.bytes += bytes_;
  }
  ~Pending() {
    const auto held = counts_->find(what_);
    held->second.bytes -= bytes_;
    if (--held->second.num == 0) counts_->erase(held);
  }
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

 private:
  const std::shared_ptr<Counts> counts_;
  const std::pair<std::string, Amount> what_;
  const int64_t bytes_;
};

}  // namespace twinkle::server
