#include "twinkle/server/tenants/amounts.h"

#include <algorithm>
#include <system_error>
#include <utility>
#include <vector>

#include "twinkle/base/file.h"
#include "twinkle/server/service/services.h"

namespace twinkle::server {

namespace fs = std::filesystem;

namespace {

std::string refused(const std::string& what, int64_t has, int64_t limit, const char* remedy) {
  return "server: this tenant has " + std::to_string(has) + " " + what + ", its limit is " +
         std::to_string(limit) + "; " + remedy + ", or ask the operator for a higher limit";
}

// Of all files below; of those that vanish meanwhile, as they were or nothing.
int64_t bytes_below(const fs::path& folder) {
  int64_t out = 0;
  std::error_code error;
  for (auto it = fs::recursive_directory_iterator(folder, error);
       !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    std::error_code gone;
    const uintmax_t bytes = it->is_regular_file(gone) ? it->file_size(gone) : 0;
    if (!gone) out += static_cast<int64_t>(bytes);
  }
  return out;
}

}  // namespace

// Folders of a run, as the disk's thread finds them.
struct Amounts::Measured {
  std::string run;
  bool is_whole;  // all that there are
  std::set<fs::path> folders;
  std::map<fs::path, int64_t> bytes = {};

  void measure(const fs::path& state) {
    if (is_whole) {
      for (const char* const kind : {"weights", "sampler_weights"})
        add(state / "checkpoints" / run / kind);
      add(state / "snapshots" / run);
    }
    for (const fs::path& folder : folders) bytes[folder] = bytes_below(folder);
  }

 private:
  void add(const fs::path& parent) {
    std::error_code none;
    for (const std::string& name : names_in(parent, none)) folders.insert(parent / name);
  }
};

std::string Amounts::refusal(Services& services, const std::string& owner, Amount amount) const {
  const store::Quota quota = services.quota_of(owner);
  const auto is_full = [](int64_t has, int64_t limit) { return limit > 0 && has >= limit; };
  if (amount == Amount::kRun && quota.max_runs > 0) {
    const int64_t runs = num_runs(services, owner);
    if (is_full(runs, quota.max_runs))
      return refused("runs", runs, quota.max_runs,
                     "finish a session whose runs are done (ServiceClient.close(\"success\"))");
  }
  if (amount == Amount::kAdapter && quota.max_adapters > 0) {
    const int64_t adapters = num_adapters(services, owner);
    if (is_full(adapters, quota.max_adapters))
      return refused("adapters that are kept to be sampled", adapters, quota.max_adapters,
                     "finish a session whose samplers are done (ServiceClient.close(\"success\"))");
  }
  if ((amount == Amount::kAdapter || amount == Amount::kCheckpoint) && quota.max_disk > 0) {
    const int64_t bytes = num_bytes(services, owner);
    if (is_full(bytes, quota.max_disk))
      return refused("bytes of checkpoints and snapshots", bytes, quota.max_disk, "save less");
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
  int64_t out = pending(owner, Amount::kAdapter);
  for (const auto& [path, checkpoint] : services.checkpoints)
    out += checkpoint.owner == owner &&
           checkpoint.folder.parent_path().filename() == "sampler_weights";
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
  const auto runs = std::make_shared<std::vector<Measured>>();
  const bool is_saved = amount == Amount::kAdapter || amount == Amount::kCheckpoint;
  if (is_saved && services.quota_of(owner).max_disk > 0)
    for (const auto& [id, run] : services.runs.all()) {
      if (run.owner != owner) continue;
      OnDisk& has = on_disk_[id];
      if (has.is_walked && has.changed.empty() && has.num_measuring == 0) continue;
      ++has.num_measuring;
      runs->push_back({id, !std::exchange(has.is_walked, true), std::exchange(has.changed, {})});
    }
  if (runs->empty()) return then();
  const auto work = [runs, state = state_] {
    for (Measured& m : *runs) m.measure(state);
  };
  services.disk.run(work, services.loop,
                    [this, &services, owner, amount, then = std::move(then), runs](const auto&) {
                      for (const Measured& m : *runs) take(m);
                      measure(services, owner, amount, then);  // what changed meanwhile
                    });
}

void Amounts::take(const Measured& measured) {
  OnDisk& has = on_disk_[measured.run];
  --has.num_measuring;
  for (const auto& [folder, bytes] : measured.bytes)
    has.bytes += bytes - std::exchange(has.folders[folder], bytes);
}

}  // namespace twinkle::server
