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

}  // namespace

void Snapshots::stepped(const Run& run) {
  const auto at = states_[run.id].at;
  if (std::chrono::steady_clock::now() - at >= options_.every) take(run);
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
  std::vector<engine::Accepted> accepted;
  try {
    // As they are: a run that could not be saved would hold up the state that all wait for.
    accepted.push_back(backend_.check(engine::Save{.tenant = run.id,
                                                   .directory = path_of(saving.record.folder),
                                                   .optimizer = true,
                                                   .as_is = true}));
    for (int64_t v = std::ssize(saving.record.versions) + 1; v <= num_versions; ++v) {
      const std::string folder = run.id + "/version-" + std::to_string(v);
      saving.record.versions.push_back(folder);
      accepted.push_back(backend_.check(engine::Save{
          .tenant = run.id, .directory = path_of(folder), .version = v, .as_is = true}));
    }
  } catch (const Error&) {
    return false;  // the queue is full, or a folder cannot be written
  }
  state.at = std::chrono::steady_clock::now();
  saving.left = std::ssize(accepted);
  saving_[run.id] = std::move(saving);
  for (engine::Accepted& save : accepted)
    backend_.submit(std::move(save), [this, id = run.id](const engine::Outcome& outcome) {
      loop_.post([this, id, failed = outcome.error != nullptr] {
        Saving& of_run = saving_.at(id);
        --of_run.left;
        of_run.failed |= failed;
        progress(id);
      });
    });
  return true;
}

void Snapshots::ended(const std::string& run, int64_t seq_id) {
  const auto found = saving_.find(run);
  if (found != saving_.end() && found->second.running.erase(seq_id) > 0) progress(run);
}

// Its record comes behind the ends of all that it covers.
void Snapshots::progress(const std::string& run) {
  const Saving& saving = saving_.at(run);
  if (saving.left > 0 || !saving.running.empty()) return;
  if (saving.failed) {
    saving_.erase(run);
    return on_change_();
  }
  history_.append(saving.record, [this, run](uint64_t, const auto& error) {
    const Snapshotted record = saving_.extract(run).mapped().record;
    if (!error) written(record);
    on_change_();
  });
}

void Snapshots::written(const Snapshotted& record) {
  const std::string before = std::exchange(states_[record.run].last, record).folder;
  const bool is_other = !before.empty() && before != record.folder;
  on_taken_(record, is_other ? path_of(before) : std::string());
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
      to_restore_.emplace_back(standing({.tenant = run, .directory = folder}, snapshot));
      to_restore_.emplace_back(
          engine::Load{.tenant = run, .directory = folder, .optimizer = true, .exact = exact});
      states_[run].last = snapshot;
    }
  }
  for (; !to_restore_.empty(); to_restore_.pop_front()) {
    const std::string run = engine::tenant_of(to_restore_.front());
    try {
      ++num_restoring_;
      backend_.submit(
          backend_.check(engine::Operation(to_restore_.front()), engine::Beyond::kAlone),
          [this, run](const engine::Outcome& outcome) {
            loop_.post([this, run, error = outcome.error] {
              --num_restoring_;
              if (error && trouble_.empty())
                trouble_ = unreadable(run, path_of(restored_.at(run).folder), text_of(error));
            });
          });
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
