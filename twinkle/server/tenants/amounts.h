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

  // Before refusal(): has the disk's thread measure what was saved since, where a limit of bytes
  // counts, and then calls `then`; at once where there is nothing to measure.
  void measure(Services& services, const std::string& owner, Amount amount,
               std::function<void()> then);
  // What was saved of the run is another: it is measured again.
  void saved(const std::string& run) {
    bytes_.erase(run);
    ++num_saves_[run];
  }

  int64_t num_runs(const Services& services, const std::string& owner) const;
  int64_t num_adapters(const Services& services, const std::string& owner) const;
  // Of checkpoints, also those that were overwritten, and of snapshots, as far as they have been
  // measured.
  int64_t num_bytes(const Services& services, const std::string& owner) const;

 private:
  using Counts = std::map<std::pair<std::string, Amount>, int64_t>;

  int64_t pending(const std::string& owner, Amount amount) const;
  int64_t num_saves(const std::string& run) const;

  const std::filesystem::path state_;
  const std::shared_ptr<Counts> pending_ = std::make_shared<Counts>();
  std::map<std::string, int64_t> bytes_;      // by run, as measured
  std::map<std::string, int64_t> num_saves_;  // by run
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
