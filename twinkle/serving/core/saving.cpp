// The service's housekeeping: snapshots of runs, the state in place of old records, and folders
// that nothing needs any more.
#include <algorithm>
#include <charconv>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"
#include "twinkle/serving/core/core.h"
#include "twinkle/serving/domain/clock.h"

namespace twinkle::server::core {
namespace {

// Between tries where the engine has no room.
constexpr std::chrono::milliseconds kAgain{50};
// Versions that no snapshot has, from which on one is taken.
constexpr int64_t kMaxUnsaved = 256;

// Versions of the run that there are behind its request `seq_id`, which the engine has.
int64_t versions_behind(const Domain& domain, const Run& run, int64_t seq_id) {
  return run.num_published + std::ranges::count_if(run.work, [&](const auto& at) {
           return at.first <= seq_id && at.second.state == Work::kStarted &&
                  domain.op(at.second.sequence)->publishes;
         });
}

}  // namespace

int64_t bytes_below(const std::filesystem::path& folder) {
  int64_t out = 0;
  std::error_code error;
  for (auto it = std::filesystem::recursive_directory_iterator(folder, error);
       !error && it != std::filesystem::recursive_directory_iterator(); it.increment(error)) {
    std::error_code gone;
    const uintmax_t bytes = it->is_regular_file(gone) ? it->file_size(gone) : 0;
    if (!gone) out += static_cast<int64_t>(bytes);
  }
  return out;
}

// An operation of the run has ended.
void Core::changed(const std::string& id) {
  const Run* const run = domain_.run(id);
  Live& live = live_[id];
  for (const Later<bool>& later : std::exchange(live.waiting, {})) later.set(true);
  if (!run || !live.is_restored) return;
  const int64_t unsaved = run->num_published - std::ssize(run->snapshot.versions);
  if (run->computed >= options_.saving.again_seconds || unsaved >= kMaxUnsaved)
    tasks_.start(save(id));
}

// Past the queues: what waits there would be computed before it.
Task<std::exception_ptr> Core::save_one(engine::Save save) {
  std::optional<engine::Accepted> accepted;
  std::exception_ptr failed;
  while (!accepted) {
    try {
      accepted.emplace(backend_.check(save));
    } catch (const Error& e) {
      if (e.code != Code::kBusy) failed = std::current_exception();
    }
    if (failed) co_return failed;
    if (!accepted) co_await pause(loop_, kAgain);
  }
  const Later<std::exception_ptr> ended;
  backend_.submit(std::move(*accepted), [this, ended](const engine::Outcome& outcome) {
    loop_.post([ended, error = outcome.error] { ended.set(error); });
  });
  co_return co_await ended;
}

Task<> Core::save(std::string id) {
  const auto covers = [&](const Run& run) { return live_[id].given > run.snapshot.seq_id; };
  const Run* run = domain_.run(id);
  if (!run || !run->is_made || !run->lost.empty() || !live_[id].is_restored) co_return;
  // A run that has done nothing needs what it began with, if that can go.
  const bool begins = run->snapshot.folder.empty() && !run->origin.folder.empty();
  if (live_[id].is_saving || (!covers(*run) && !begins)) co_return;
  live_[id].is_saving = true;
  // As it is: a run that could not be saved would be done again by each start. Its number is that
  // of the moment at which the engine takes the Save.
  Snapshot made{.versions = run->snapshot.versions};
  std::optional<engine::Accepted> accepted;
  bool failed = false;
  while (!accepted && !failed && domain_.run(id)) {
    made.seq_id = live_[id].given;
    made.folder = id + "/" + std::to_string(made.seq_id);
    try {
      accepted.emplace(
          backend_.check(engine::Save{.tenant = id,
                                      .directory = (state_ / "snapshots" / made.folder).string(),
                                      .optimizer = true,
                                      .as_is = true}));
    } catch (const Error& e) {
      failed = e.code != Code::kBusy;
      if (!failed && !live_[id].is_put_off)
        on_trouble("the snapshot of the run '" + id + "' waits for room: " + e.what());
      live_[id].is_put_off = true;
    }
    if (!accepted && !failed) co_await pause(loop_, kAgain);
  }
  run = domain_.run(id);
  if (!run || failed) {
    if (run) live_[id].is_saving = false;
    co_return;
  }
  live_[id].is_put_off = false;
  const Later<bool> saved;
  backend_.submit(std::move(*accepted), [this, saved](const engine::Outcome& outcome) {
    loop_.post([saved, ok = !outcome.error] { saved.set(ok); });
  });
  const int64_t num_versions = versions_behind(domain_, *run, made.seq_id);
  // The engine keeps versions: any time is as good.
  for (int64_t v = std::ssize(made.versions) + 1; v <= num_versions && !failed; ++v) {
    made.versions.push_back(id + "/version-" + std::to_string(v));
    engine::Save version{.tenant = id,
                         .directory = (state_ / "snapshots" / made.versions.back()).string()};
    version.version = v;
    version.as_is = true;
    const std::exception_ptr error = co_await save_one(std::move(version));
    failed |= error != nullptr;
  }
  failed |= !co_await saved;
  // Its record comes behind the ends of all that it covers.
  const auto is_open = [&] {
    return std::ranges::any_of(domain_.run(id)->work, [&](const auto& at) {
      return at.first <= made.seq_id && at.second.state == Work::kStarted;
    });
  };
  while (!failed && domain_.run(id) && is_open()) {
    const Later<bool> later;
    live_[id].waiting.push_back(later);
    co_await later;
  }
  const auto bytes = std::make_shared<int64_t>(0);
  const auto measure = [folder = state_ / "snapshots" / id, bytes] {
    *bytes = bytes_below(folder);
  };
  if (!failed) co_await on(disk_, loop_, measure);
  if (!domain_.run(id)) co_return;
  live_[id].is_saving = false;
  if (failed) co_return;
  made.bytes = *bytes;
  record(Snapshotted{id, made});
  release(id);
  changed(id);
}

// Samplers of versions that lie on the disk sample these, and the engine lets the versions go; but
// for the newest, which is sampled most.
void Core::release(const std::string& id) {
  const Run& run = *domain_.run(id);
  Live& live = live_[id];
  for (int64_t v = live.released + 1; v < std::ssize(run.snapshot.versions); ++v) {
    if (queues_.has_sample(id, v)) return;  // the next snapshot does it
    try {
      // It comes behind the Samples that have been given the version.
      backend_.submit(backend_.check(engine::Release{.tenant = id, .version = v}),
                      [](const engine::Outcome&) {});
    } catch (const Error&) {
      return;
    }
    live.released = v;
  }
}

Task<> Core::save_runs() {
  const auto is_saving = [this] {
    return std::ranges::any_of(live_, [](const auto& at) { return at.second.is_saving; });
  };
  // Twice: the first may have found an older one on its way. Not more: the disk may refuse.
  for (int i = 0; i < 2; ++i) {
    for (const auto& [id, run] : domain_.runs()) tasks_.start(save(id));
    while (is_saving()) co_await pause(loop_, std::chrono::milliseconds(20));
  }
}

// The state takes the place of the records before it, which go by whole segments.
Task<> Core::compact() {
  is_compacting_ = true;
  const uint64_t segment = log_.last_segment();
  log_.begin_segment();
  while (log_.last_segment() == segment) co_await pause(loop_, kAgain);
  if (closing_) co_return;
  const uint64_t sequence = log_.sequence();
  State state = domain_.state(sequence, milliseconds_since_1970());
  const int64_t bytes = log_.bytes();
  try {
    co_await log_.written(sequence);
    if (closing_) co_return;
    co_await log_.replace_by(std::move(state));
    bytes_in_state_ = bytes;
    ++num_states_;
  } catch (const Error& e) {
    ++num_states_given_up_;
    on_trouble(std::string("the state could not take the place of the journal: ") + e.what());
  }
  co_await pause(loop_, std::chrono::seconds(1));
  is_compacting_ = false;
}

void Core::keep(const std::string& path) {
  const Checkpoint* const of = domain_.checkpoint(path);
  if (!of || of->expires_ms == 0 || expiring_[path] == of->expires_ms) return;
  expiring_[path] = of->expires_ms;
  tasks_.start(expire(path));
}

// Deletes it at its time, which may change meanwhile.
Task<> Core::expire(std::string path) {
  for (;;) {
    const Checkpoint* const of = domain_.checkpoint(path);
    if (!of || of->expires_ms == 0 || of->expires_ms != expiring_[path]) break;
    const int64_t left = of->expires_ms - milliseconds_since_1970();
    if (left > 0) {
      co_await pause(loop_, std::chrono::milliseconds(std::min<int64_t>(left, 3600000)));
      continue;
    }
    DeleteCheckpoint command{path};
    bool is_done = true;
    try {
      co_await commit(std::move(command));
    } catch (const Error&) {
      is_done = false;  // the disk refuses
    }
    if (is_done) break;
    co_await pause(loop_, std::chrono::seconds(1));
  }
  if (!domain_.checkpoint(path)) expiring_.erase(path);
}

// The journal is this process's by now, so that no other is saving here. What is ahead of the
// journal stays: a kill leaves it, but so does a journal whose end was not copied, and who puts
// that back needs it. It goes with a start behind a later snapshot of its run.
void Core::remove_leftovers() const {
  const auto is_behind = [](const std::string& name, int64_t seq_id) {
    int64_t number = 0;
    const char* const end = name.data() + name.size();
    const auto [at, error] = std::from_chars(name.data(), end, number);
    const bool is_number = error == std::errc() && at == end;
    return is_number ? number < seq_id : name.starts_with('.');  // half written, or half removed
  };
  std::error_code ignored;  // files that stay take room, and nothing else
  for (const auto& [id, run] : domain_.runs())
    for (const std::string& name : names_in(state_ / "snapshots" / id, ignored))
      if (is_behind(name, run.snapshot.seq_id)) remove_tree(state_ / "snapshots" / id / name);
}

// Each once its record survives a loss of power: until then such a start needs it.
void Core::remove_folders() {
  for (const std::string& folder : domain_.removable())
    if (removing_.insert(folder).second) tasks_.start(remove_folder(folder, log_.sequence()));
}

// Renamed first: it is whole or not there at all, and a backup that still sees it has its files.
Task<> Core::remove_folder(std::string folder, uint64_t sequence) {
  adapters_.forget(folder);
  const auto is_gone = std::make_shared<bool>(false);
  const auto remove = [this, path = state_ / folder, sequence, is_gone] {
    if (!log_.is_synced(sequence)) return;
    // No checkpoint's name begins with '.'.
    const std::filesystem::path gone =
        path.parent_path() / std::string(".").append(path.filename().string()).append(".gone");
    std::error_code error;
    std::filesystem::rename(path, gone, error);
    std::filesystem::remove_all(gone, error);
    *is_gone = !is_there(path);
  };
  co_await on(disk_, loop_, remove);
  removing_.erase(folder);
  if (*is_gone)
    domain_.removed(folder);
  else
    on_trouble((state_ / folder).string() + " could not be removed; the next start tries again");
}

void Core::check_quiet() {
  if (options_.park_after.count() == 0) return;
  for (const auto& [id, run] : domain_.runs()) {
    Live& live = live_[id];
    live.quiet = heard_.contains(run.session) ? 0 : live.quiet + 1;
    if (live.quiet == Adapters::kChecks) tasks_.start(save(id));
    const bool is_idle = std::ranges::none_of(
        run.work, [](const auto& at) { return at.second.state == Work::kStarted; });
    if (live.quiet < Adapters::kChecks || !run.is_made || !is_idle) continue;
    try {
      backend_.submit(backend_.check(engine::Park{id}), [](const engine::Outcome&) {});
    } catch (const Error&) {
      // There is no room; the next check tries again.
    }
  }
  heard_.clear();
  adapters_.let_go_of_quiet(
      [this](const std::string& tenant) { return queues_.has_sample(tenant, 0); });
  loop_.after(std::max(options_.park_after / Adapters::kChecks, std::chrono::milliseconds(1)),
              [this] { check_quiet(); });
}

}  // namespace twinkle::server::core
