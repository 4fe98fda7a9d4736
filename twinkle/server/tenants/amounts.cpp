#include "twinkle/server/tenants/amounts.h"

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "twinkle/base/file.h"
#include "twinkle/io/atomic.h"
#include "twinkle/server/service/services.h"

namespace twinkle::server {

namespace fs = std::filesystem;

namespace {

std::string refused(const std::string& what, int64_t has, int64_t limit, const char* remedy) {
  return "server: this tenant has " + std::to_string(has) + " " + what + ", its limit is " +
         std::to_string(limit) + "; " + remedy;
}

int64_t num_named(const Services& services, const std::string& owner) {
  return std::ranges::count_if(services.checkpoints, [&](const auto& at) {
    return at.second.owner == owner &&
           at.second.folder.parent_path().filename() == "sampler_weights";
  });
}

bool is_gone(const std::error_code& error) { return error == std::errc::no_such_file_or_directory; }

// Of all files below; of those that vanish meanwhile, as they were or nothing. None where the
// folder cannot be read.
std::optional<int64_t> bytes_below(const fs::path& folder) {
  int64_t out = 0;
  std::error_code error;
  for (auto it = fs::recursive_directory_iterator(folder, error);
       !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    std::error_code gone;
    const uintmax_t bytes = it->is_regular_file(gone) ? it->file_size(gone) : 0;
    if (!gone) out += static_cast<int64_t>(bytes);
  }
  if (error && !is_gone(error)) return std::nullopt;
  return out;
}

}  // namespace

// Folders of a run, as the disk's thread finds them.
struct Amounts::Measured {
  std::string run;
  bool is_walked;                          // all that there are are known
  std::set<fs::path> folders;              // to be measured
  std::map<fs::path, int64_t> bytes = {};  // of those that could be read

  void measure(const fs::path& state) {
    if (!is_walked) {
      const fs::path checkpoints = state / "checkpoints" / run;
      is_walked = add(checkpoints / "weights") && add(checkpoints / "sampler_weights") &&
                  add(state / "snapshots" / run);
    }
    for (const fs::path& folder : folders)
      if (const auto below = bytes_below(folder)) bytes[folder] = *below;
  }

 private:
  // False where they cannot be read.
  bool add(const fs::path& parent) {
    std::error_code error;
    for (const std::string& name : names_in(parent, error))
      if (!is_partial_name(name)) folders.insert(parent / name);  // it counts when it is saved
    return !error || is_gone(error);
  }
};

std::string Amounts::refusal(Services& services, const std::string& owner, Amount amount) const {
  const store::Quota quota = services.quota_of(owner);
  const auto is_full = [](int64_t has, int64_t limit) { return limit > 0 && has >= limit; };
  if (amount == Amount::kRun && quota.max_runs > 0) {
    const int64_t runs = num_runs(services, owner);
    if (is_full(runs, quota.max_runs))
      return refused(
          "runs", runs, quota.max_runs,
          "finish a session whose runs are done (ServiceClient.close(\"success\")), or ask "
          "the operator for a higher limit");
  }
  if (amount == Amount::kAdapter && quota.max_adapters > 0) {
    const int64_t adapters = num_adapters(services, owner);
    if (is_full(adapters, quota.max_adapters))
      return refused("adapters that are kept to be sampled", adapters, quota.max_adapters,
                     is_full(num_named(services, owner), quota.max_adapters)
                         ? "named ones, which are never given back, fill it: ask the operator for "
                           "a higher limit"
                         : "finish a session whose samplers are done "
                           "(ServiceClient.close(\"success\")), or ask the operator for a higher "
                           "limit");
  }
  if ((amount == Amount::kAdapter || amount == Amount::kCheckpoint) && quota.max_disk > 0) {
    const int64_t bytes = num_bytes(services, owner);
    if (is_full(bytes, quota.max_disk))
      return refused("bytes of checkpoints and snapshots", bytes, quota.max_disk,
                     "ask the operator for a higher limit, or to remove checkpoints, which counts "
                     "from the next start of the server");
  }
  return "";
}

std::shared_ptr<Amounts::Pending> Amounts::pend(const std::string& owner, Amount amount) {
  return std::make_shared<Pending>(pending_, owner, amount);
}

int64_t Amounts::pending(const std::string& owner, Amount amount) const {
  const auto found = pending_->find({owner, amount});
  return found == pending_->end() ? 0 : found->second;
}

int64_t Amounts::num_runs(const Services& services, const std::string& owner) const {
  return pending(owner, Amount::kRun) +
         std::ranges::count_if(services.runs.all(), [&](const auto& run) {
           return run.second.owner == owner && !run.second.finished;
         });
}

// Named ones, and the versions of runs that have not finished.
int64_t Amounts::num_adapters(const Services& services, const std::string& owner) const {
  int64_t out = pending(owner, Amount::kAdapter) + num_named(services, owner);
  for (const auto& [id, run] : services.runs.all())
    if (run.owner == owner && !run.finished) out += run.num_published;
  return out;
}

int64_t Amounts::num_bytes(const Services& services, const std::string& owner) const {
  int64_t out = 0;
  for (const auto& [id, run] : services.runs.all())
    if (const auto found = on_disk_.find(id); run.owner == owner && found != on_disk_.end())
      out += found->second.bytes;
  return out;
}

void Amounts::saved(const Snapshotted& snapshot) {
  const fs::path snapshots = state_ / "snapshots";
  changed(snapshot.run, snapshots / snapshot.folder);
  const OnDisk& known = on_disk_.at(snapshot.run);
  for (const std::string& version : snapshot.versions)
    if (!known.folders.contains(snapshots / version)) changed(snapshot.run, snapshots / version);
}

void Amounts::measure(Services& services, const std::string& owner, Amount amount,
                      std::function<void()> then) {
  const bool is_saved = amount == Amount::kAdapter || amount == Amount::kCheckpoint;
  if (!is_saved || services.quota_of(owner).max_disk == 0) return then();
  if (const auto found = waiting_.find(owner); found != waiting_.end())
    return found->second.push_back([this, &services, owner, amount, then = std::move(then)] {
      measure(services, owner, amount, then);  // what changed after that measurement began
    });
  const auto runs = std::make_shared<std::vector<Measured>>();
  for (const auto& [id, run] : services.runs.all()) {
    if (run.owner != owner) continue;
    const OnDisk& has = on_disk_[id];
    if (has.is_walked && has.changed.empty()) continue;
    runs->push_back({id, has.is_walked, has.changed});
  }
  if (runs->empty()) return then();
  const auto work = [runs, state = state_] {
    for (Measured& m : *runs) m.measure(state);
  };
  waiting_[owner];
  try {
    services.disk.run(work, services.loop,
                      [this, owner, then = std::move(then), runs](const auto&) {
                        for (const Measured& m : *runs) take(m);
                        const auto others = waiting_.extract(owner);
                        then();
                        for (const auto& go_on : others.mapped()) go_on();
                      });
  } catch (...) {  // no memory: what comes again begins anew
    waiting_.erase(owner);
    throw;
  }
  for (const Measured& m : *runs) on_disk_[m.run].changed.clear();
}

// What could not be read is left to the next save.
void Amounts::take(const Measured& measured) {
  OnDisk& has = on_disk_[measured.run];
  has.is_walked = measured.is_walked;
  for (const fs::path& folder : measured.folders) {
    const auto bytes = measured.bytes.find(folder);
    if (bytes == measured.bytes.end())
      has.changed.insert(folder);
    else
      has.bytes += bytes->second - std::exchange(has.folders[folder], bytes->second);
  }
}

}  // namespace twinkle::server
