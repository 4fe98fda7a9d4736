#include "twinkle/server/service/snapshots.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <system_error>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"
#include "twinkle/io/atomic.h"
#include "twinkle/server/history/backup.h"
#include "twinkle/server/service/runs.h"

namespace twinkle::server {

namespace fs = std::filesystem;

namespace {

// Versions that no snapshot has, from which on one is taken.
constexpr int64_t kMaxUnsaved = 256;
// Saves of versions that the engine has at a time: the run's own operations have places, too.
constexpr int64_t kMaxGiven = 64;
// Snapshots that a start has read and the engine has not taken: it parks the runs before them.
constexpr int64_t kMaxRestoring = int64_t{256} << 20;
// Between tries where the engine has no room.
constexpr std::chrono::milliseconds kAgain{50};

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
}

// Whether an entry of a run's folder is half written, or another took its place before the run's
// snapshot behind `seq_id` was recorded.
bool is_behind(const std::string& name, int64_t seq_id) {
  int64_t number = 0;
  const char* const end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data(), end, number);
  const bool is_number = error == std::errc() && at == end;
  return is_number ? number < seq_id : name.ends_with(".old") || is_partial_name(name);
}

// The sizes of a folder's files; 0 where it is not there, which the engine says.
int64_t bytes_in(const fs::path& folder) {
  int64_t out = 0;
  std::error_code error;
  for (const std::string& name : names_in(folder, error)) {
    const uintmax_t bytes = fs::file_size(folder / name, error);
    if (!error) out += static_cast<int64_t>(bytes);
  }
  return out;
}

}  // namespace

void Snapshots::stepped(const Run& run) {
  const auto at = states_[run.id].at;
  if (std::chrono::steady_clock::now() - at >= options_.every) take(run);
}

void Snapshots::published(const Run& run) {
  if (run.num_published - std::ssize(states_[run.id].last.versions) >= kMaxUnsaved) take(run);
}

void Snapshots::has_room(const Run& run) {
  if (put_off_.contains(run.id)) take(run);
}

void Snapshots::catch_up(const Run& run) {
  const int64_t saved = std::max(last(run.id), saving(run.id));
  if (run.is_made && run.given > std::max<int64_t>(0, saved)) take(run);
}

bool Snapshots::take(const Run& run) {
  if (!history_.keeps() || saving_.contains(run.id)) return false;
  State& state = states_[run.id];
  Saving saving{.record = state.last};
  saving.record.run = run.id;
  saving.record.owner = run.owner;
  saving.record.key_id = run.key_id;
  saving.record.seq_id = run.given;
  saving.record.folder = run.id + "/" + std::to_string(run.given);
  int64_t num_versions = run.num_published;
  for (const auto& [seq_id, what] : run.running) {
    if (seq_id > run.given) break;  // the engine has not been given it
    saving.running.insert(seq_id);
    num_versions += what.publishes;
  }
  for (int64_t v = std::ssize(saving.record.versions) + 1; v <= num_versions; ++v) {
    const std::string folder = run.id + "/version-" + std::to_string(v);
    saving.record.versions.push_back(folder);
    saving.to_give.push_back(
        {.tenant = run.id, .directory = path_of(folder), .version = v, .as_is = true});
  }
  std::optional<engine::Accepted> save;
  try {
    // As it is: a run that could not be saved would hold up the state that all wait for.
    save.emplace(backend_.check(engine::Save{.tenant = run.id,
                                             .directory = path_of(saving.record.folder),
                                             .optimizer = true,
                                             .as_is = true}));
  } catch (const Error& e) {
    if (e.code == Code::kBusy) {
      put_off(run, e.what());
      return true;
    }
    if (put_off_.erase(run.id) > 0) loop_.post([this] { on_change_(); });
    return false;
  }
  put_off_.erase(run.id);
  state.at = std::chrono::steady_clock::now();
  saving_[run.id] = std::move(saving);
  give(run.id, std::move(*save));
  give_versions(run.id);
  return true;
}

void Snapshots::put_off(const Run& run, const std::string& why) {
  if (!put_off_.emplace(run.id, &run).second) return;
  on_put_off_("the snapshot of the run '" + run.id + "' waits for room: " + why);
  try_again(run.id);
}

void Snapshots::try_again(const std::string& run) {
  loop_.after(kAgain, [this, run] {
    const auto found = put_off_.find(run);
    if (found == put_off_.end()) return;
    take(*found->second);
    if (put_off_.contains(run)) try_again(run);
  });
}

void Snapshots::give(const std::string& run, engine::Accepted save) {
  backend_.submit(std::move(save), [this, run](const engine::Outcome& outcome) {
    loop_.post([this, run, failed = outcome.error != nullptr] {
      Saving& of_run = saving_.at(run);
      --of_run.num_given;
      of_run.failed |= failed;
      progress(run);
    });
  });
  ++saving_.at(run).num_given;
}

// As many as there is room for, and at the end of each the next: there may be more versions than
// the engine's queue has places.
void Snapshots::give_versions(const std::string& run) {
  Saving& saving = saving_.at(run);
  try {
    for (; !saving.failed && !saving.to_give.empty() && saving.num_given < kMaxGiven;
         saving.to_give.pop_front())
      give(run, backend_.check(saving.to_give.front()));
  } catch (const Error& e) {
    if (e.code != Code::kBusy)
      saving.failed = true;
    else if (saving.num_given == 0 && !std::exchange(saving.waits, true))
      loop_.after(kAgain, [this, run] {
        const auto found = saving_.find(run);
        if (found == saving_.end() || !std::exchange(found->second.waits, false)) return;
        progress(run);
      });
  }
}

void Snapshots::ended(const std::string& run, int64_t seq_id) {
  const auto found = saving_.find(run);
  if (found != saving_.end() && found->second.running.erase(seq_id) > 0) progress(run);
}

// Its record comes behind the ends of all that it covers.
void Snapshots::progress(const std::string& run) {
  Saving& saving = saving_.at(run);
  give_versions(run);
  if (saving.num_given > 0) return;
  if (saving.failed) {
    saving_.erase(run);
    return on_change_();
  }
  if (!saving.to_give.empty() || !saving.running.empty()) return;
  if (std::exchange(saving.is_told, true)) return;
  history_.append(saving.record, [this, run](uint64_t sequence, const auto& error) {
    const Snapshotted record = saving_.extract(run).mapped().record;
    if (!error) written(record, sequence);
    on_change_();
  });
}

void Snapshots::written(const Snapshotted& record, uint64_t sequence) {
  const std::string before = std::exchange(states_[record.run].last, record).folder;
  const bool is_other = !before.empty() && before != record.folder;
  on_taken_(record, sequence, is_other ? path_of(before) : std::string());
}

int64_t Snapshots::last(const std::string& run) const {
  const auto found = states_.find(run);
  const bool is_there = found != states_.end() && !found->second.last.folder.empty();
  return is_there ? found->second.last.seq_id : -1;
}

int64_t Snapshots::saving(const std::string& run) const {
  const auto found = saving_.find(run);
  return found == saving_.end() ? -1 : found->second.record.seq_id;
}

std::vector<Snapshotted> Snapshots::all() const {
  std::vector<Snapshotted> out;
  for (const auto& [run, state] : states_)
    if (!state.last.folder.empty()) out.push_back(state.last);
  return out;
}

bool Snapshots::restore(const std::map<std::string, Snapshotted>& snapshots, bool exact,
                        const Standing& standing) {
  if (restored_.empty()) {
    restored_ = snapshots;
    for (const auto& [run, snapshot] : snapshots) {
      const std::string folder = path_of(snapshot.folder);
      const int64_t bytes = bytes_in(folder);
      to_restore_.push_back({standing({.tenant = run, .directory = folder}, snapshot), bytes});
      to_restore_.push_back(
          {engine::Load{.tenant = run, .directory = folder, .optimizer = true, .exact = exact},
           bytes});
      states_[run].last = snapshot;
    }
  }
  for (; !to_restore_.empty(); to_restore_.pop_front()) {
    const auto& [operation, bytes] = to_restore_.front();
    if (num_restoring_ > 0 && restoring_bytes_ + bytes > kMaxRestoring) return false;
    const std::string run = engine::tenant_of(operation);
    try {
      ++num_restoring_;
      backend_.submit(backend_.check(engine::Operation(operation), engine::Beyond::kAlone),
                      [this, run, bytes = bytes](const engine::Outcome& outcome) {
                        loop_.post([this, run, bytes, error = outcome.error] {
                          --num_restoring_;
                          restoring_bytes_ -= bytes;
                          if (error && trouble_.empty())
                            trouble_ =
                                unreadable(run, path_of(restored_.at(run).folder), text_of(error));
                        });
                      });
      restoring_bytes_ += bytes;
    } catch (const Error& e) {
      --num_restoring_;
      if (e.code == Code::kBusy) return false;
      fail(e.code, "server: the snapshot of the run '", run, "': ", e.what());
    }
  }
  return true;
}

bool Snapshots::covers(const std::string& run, int64_t seq_id) const {
  const auto found = restored_.find(run);
  return history_.is_replaying() && found != restored_.end() && seq_id <= found->second.seq_id;
}

std::optional<std::string> Snapshots::version(const std::string& run, int64_t version) const {
  const auto found = restored_.find(run);
  if (found == restored_.end() || version > std::ssize(found->second.versions)) return std::nullopt;
  return path_of(found->second.versions[static_cast<size_t>(version - 1)]);
}

bool Snapshots::finish_restore() {
  require(trouble_.empty(), Code::kInvalid, trouble_);
  if (is_restoring()) return false;
  if (!std::exchange(has_removed_, true)) remove_leftovers();
  return true;
}

// The journal is this process's by now, so that no other is saving here. What is ahead of the
// journal stays: a kill leaves it, but so does a journal whose end was not copied, and who puts
// that back needs it. It goes with a start behind a later snapshot of its run.
void Snapshots::remove_leftovers() const {
  std::error_code ignored;  // what stays takes room, and nothing else
  for (const auto& [run, snapshot] : restored_)
    for (const std::string& name : names_in(folder_ / run, ignored))
      if (is_behind(name, snapshot.seq_id)) remove_tree(folder_ / run / name);
}

}  // namespace twinkle::server
