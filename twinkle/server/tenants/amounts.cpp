#include "twinkle/server/tenants/amounts.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"
#include "twinkle/io/atomic.h"
#include "twinkle/server/service/services.h"
#include "twinkle/server/tinker/modules.h"

namespace twinkle::server {

namespace fs = std::filesystem;

namespace {

std::string refused(const std::string& what, int64_t has, int64_t limit,
                    const std::string& remedy) {
  return "server: this tenant has " + std::to_string(has) + " " + what + ", its limit is " +
         std::to_string(limit) + "; " + remedy;
}

// Whether it counts: one whose making has failed never was, and one that is lost is no more.
bool is_live(const Services& services, const Run& run) {
  return !run.finished && !run.is_unloaded && (run.is_made || run.num_creating > 0) &&
         !services.operations.lost().contains(run.id);
}

// Whose runs' last request is the oldest, or "".
std::string most_silent_session(const Services& services, const std::string& owner) {
  std::map<std::string, int64_t> last;  // by session
  for (const auto& [id, run] : services.runs.all()) {
    if (run.owner != owner || !is_live(services, run)) continue;
    int64_t& of = last[id.substr(0, id.find(':'))];
    of = std::max(of, run.last_ms);
  }
  const auto out = std::ranges::min_element(last, {}, [](const auto& at) { return at.second; });
  return out == last.end() ? "" : out->first;
}

int64_t num_named(const Services& services, const std::string& owner) {
  return std::ranges::count_if(services.checkpoints, [&](const auto& at) {
    return at.second.owner == owner &&
           at.second.folder.parent_path().filename() == "sampler_weights";
  });
}

bool is_gone(const std::error_code& error) { return error == std::errc::no_such_file_or_directory; }

// The member's text, or nothing: what else it is, the request's handler tells.
std::string text_in(const Json& body, std::string_view name) {
  const Json* const found = find(body, name);
  return found && found->is_string() ? std::string(found->get_string()) : "";
}

// Names, shapes and counts of steps of a linear's tensors, in headers and trainer_state.json, and
// what else these files have: in bytes, at most.
constexpr int64_t kHeaderOfLinear = 2048, kHeader = int64_t{64} << 10;

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

// Those that the run's adapter is on.
template <class Visit>
void visit_modules(const ModelFacts& model, const Run& run, Visit&& visit) {
  for (const auto& [group, modules] : tinker::module_groups()) {
    const auto trains = run.trains.find(group);
    if (trains != run.trains.end() && !trains->second) continue;
    for (const char* module : modules) {
      const auto size = model.adapter_sizes.find(module);
      if (size != model.adapter_sizes.end()) visit(size->second);
    }
  }
}

}  // namespace

// Float32 numbers: weights, gradients and the optimizer's two moments.
void require_fits(const Backend& backend, const Run& run) {
  int64_t bytes = 0;
  visit_modules(backend.model(), run, [&](const engine::AdapterSize& size) {
    bytes += int64_t{4 * sizeof(float)} * run.rank * size.numbers;
  });
  const int64_t limit = backend.parking().limit;
  require(limit == 0 || bytes <= limit, Code::kInvalid, "server: lora_config.rank is ", run.rank,
          ", with which a run takes up to ", bytes, " bytes of memory, resident_bytes is ", limit,
          " for all runs; ask for a lower rank or fewer modules, or ask the operator to raise it");
}

// Float32 numbers: the adapter's, and with the optimizer its two moments.
int64_t most_bytes(const ModelFacts& model, const Run& run, bool optimizer) {
  int64_t out = kHeader + model.carried_bytes;
  visit_modules(model, run, [&](const engine::AdapterSize& size) {
    const int64_t bytes = int64_t{sizeof(float)} * run.rank * size.numbers;
    out += bytes * (optimizer ? 3 : 1) + kHeaderOfLinear * size.linears;
  });
  return out;
}

Addition Amounts::addition(const Services& services, Amount amount, const Json& body) {
  const bool is_version = amount == Amount::kAdapter && !find(body, "path");
  if (amount == Amount::kNothing || amount == Amount::kRun || is_version) return {amount};
  const auto run = services.runs.all().find(text_in(body, "model_id"));
  if (run == services.runs.all().end()) return {amount};
  return {amount, most_bytes(services.backend.model(), run->second, amount == Amount::kCheckpoint)};
}

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

std::string Amounts::refusal(Services& services, const std::string& owner, Amount adds) const {
  const store::Quota quota = services.quota_of(owner);
  const auto is_full = [](int64_t has, int64_t limit) { return limit > 0 && has >= limit; };
  if (adds == Amount::kRun && quota.max_runs > 0) {
    const int64_t runs = num_runs(services, owner);
    if (is_full(runs, quota.max_runs)) {
      const std::string of = most_silent_session(services, owner);
      const std::string by_hand =
          of.empty() ? ""
                     : ", or, of a client that has gone, POST /api/v1/sessions/" + of + "/finish";
      return refused("runs", runs, quota.max_runs,
                     "finish a session whose runs are done (ServiceClient.close(\"success\")" +
                         by_hand + "), or ask the operator for a higher limit");
    }
  }
  if (adds == Amount::kAdapter && quota.max_adapters > 0) {
    const int64_t adapters = num_adapters(services, owner);
    if (is_full(adapters, quota.max_adapters))
      return refused("adapters that are kept to be sampled", adapters, quota.max_adapters,
                     "they are never given back, nor are those of sessions that have finished: ask "
                     "the operator for a higher limit");
  }
  if (adds != Amount::kNothing && quota.max_disk > 0) {
    const int64_t has = num_bytes(services, owner);
    const int64_t coming = num_coming_bytes(services, owner);
    const std::string what = "bytes of checkpoints and snapshots";
    if (is_full(has, quota.max_disk))
      return refused(what, has, quota.max_disk,
                     "ask the operator for a higher limit, or to remove checkpoints, which counts "
                     "from the next start of the server");
    if (is_full(has + coming, quota.max_disk))
      return refused(what + ", and saves that have not ended may add " + std::to_string(coming),
                     has, quota.max_disk,
                     "wait until they have ended, send the requests before them that have not "
                     "come, or ask the operator for a higher limit");
  }
  return "";
}

std::shared_ptr<Amounts::Pending> Amounts::pend(const std::string& owner, const Addition& adds) {
  return std::make_shared<Pending>(pending_, owner, adds);
}

Amounts::Held Amounts::pending(const std::string& owner, Amount amount) const {
  const auto found = pending_->find({owner, amount});
  return found == pending_->end() ? Held{} : found->second;
}

int64_t Amounts::num_runs(const Services& services, const std::string& owner) const {
  return pending(owner, Amount::kRun).num +
         std::ranges::count_if(services.runs.all(), [&](const auto& run) {
           return run.second.owner == owner && is_live(services, run.second);
         });
}

// Named ones, and versions: of runs that have finished, too, for their samplers are sampled still.
int64_t Amounts::num_adapters(const Services& services, const std::string& owner) const {
  int64_t out = pending(owner, Amount::kAdapter).num + num_named(services, owner);
  for (const auto& [id, run] : services.runs.all())
    if (run.owner == owner) out += run.num_published;
  return out;
}

int64_t Amounts::num_bytes(const Services& services, const std::string& owner) const {
  int64_t out = 0;
  for (const auto& [id, run] : services.runs.all())
    if (const auto found = on_disk_.find(id); run.owner == owner && found != on_disk_.end())
      out += found->second.bytes;
  return out;
}

int64_t Amounts::num_coming_bytes(const Services& services, const std::string& owner) const {
  int64_t out = 0;
  for (const Amount amount : {Amount::kAdapter, Amount::kCheckpoint})
    out += pending(owner, amount).bytes;
  for (const auto& [id, run] : services.runs.all()) {
    if (run.owner != owner) continue;
    const auto found = on_disk_.find(id);
    if (found == on_disk_.end()) continue;
    for (const Most* folders : {&found->second.changed, &found->second.measuring})
      for (const auto& [folder, bytes] : *folders) out += bytes;
  }
  return out;
}

void Amounts::changed(const std::string& run, const fs::path& folder, int64_t most) {
  OnDisk& has = on_disk_[run];
  if (!has.is_walked && !has.is_walking) return;  // who walks finds it
  has.changed[folder] = has.folders.contains(folder) ? 0 : most;
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
  if (amount == Amount::kNothing || services.quota_of(owner).max_disk == 0) return then();
  if (const auto found = waiting_.find(owner); found != waiting_.end())
    return found->second.push_back([this, &services, owner, amount, then = std::move(then)] {
      measure(services, owner, amount, then);  // what changed after that measurement began
    });
  const auto runs = std::make_shared<std::vector<Measured>>();
  for (const auto& [id, run] : services.runs.all()) {
    if (run.owner != owner) continue;
    const OnDisk& has = on_disk_[id];
    if (has.is_walked && has.changed.empty()) continue;
    Measured& to = runs->emplace_back(Measured{id, has.is_walked, {}});
    for (const auto& [folder, most] : has.changed) to.folders.insert(folder);
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
  for (const Measured& m : *runs) {
    OnDisk& of = on_disk_.at(m.run);
    of.measuring.swap(of.changed);  // `measuring` is empty: one measurement at a time
    of.is_walking = !of.is_walked;
  }
}

// What could not be read is left to the next save.
void Amounts::take(const Measured& measured) {
  OnDisk& has = on_disk_[measured.run];
  has.is_walked = measured.is_walked;
  has.is_walking = false;
  for (const fs::path& folder : measured.folders) {
    const auto bytes = measured.bytes.find(folder);
    if (bytes != measured.bytes.end()) {
      has.bytes += bytes->second - std::exchange(has.folders[folder], bytes->second);
      if (bytes->second == 0) {
        has.folders.erase(folder);  // it is gone
        continue;
      }
      // Of what was saved while it was measured: measured again, and counted once until then.
      if (const auto again = has.changed.find(folder); again != has.changed.end())
        again->second = 0;
      continue;
    }
    const auto most = has.measuring.find(folder);
    has.changed.try_emplace(folder, most == has.measuring.end() ? 0 : most->second);
  }
  has.measuring.clear();
}

}  // namespace twinkle::server
