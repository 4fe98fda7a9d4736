#include "twinkle/server/service/snapshots.h"

#include <algorithm>
#include <set>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"

namespace twinkle::server {

namespace fs = std::filesystem;

void Snapshots::stepped(const std::string& run, int64_t seq_id, int64_t num_published,
                        const std::string& request_id, const std::string& owner) {
  if (!history_.keeps()) return;
  State& state = states_[run];
  const auto now = std::chrono::steady_clock::now();
  if (saving_.contains(run) || now - state.at < options_.every) return;
  Saving saving{.request_id = request_id, .record = state.last};
  saving.record.run = run;
  saving.record.seq_id = seq_id;
  saving.record.owner = owner;
  saving.record.folder = run + "/" + std::to_string(seq_id);
  std::vector<engine::Accepted> accepted;
  try {
    accepted.push_back(backend_.check(engine::Save{
        .tenant = run, .directory = path_of(saving.record.folder), .optimizer = true}));
    for (int64_t v = std::ssize(saving.record.versions) + 1; v <= num_published; ++v) {
      const std::string folder = run + "/version-" + std::to_string(v);
      saving.record.versions.push_back(folder);
      accepted.push_back(
          backend_.check(engine::Save{.tenant = run, .directory = path_of(folder), .version = v}));
    }
  } catch (const Error&) {
    return;  // the queue is full, or a folder cannot be written; the next step tries again
  }
  state.at = now;
  saving.left = std::ssize(accepted) + 1;
  saving_[run] = std::move(saving);
  for (engine::Accepted& save : accepted)
    backend_.submit(std::move(save), [this, run](const engine::Outcome& outcome) {
      loop_.post([this, run, failed = outcome.error != nullptr] { progress(run, failed); });
    });
}

void Snapshots::ended(const std::string& request_id) {
  for (const auto& [run, saving] : saving_)
    if (saving.request_id == request_id) return progress(std::string(run), false);
}

// Its record comes behind that of its step's end: what it covers has ended in the journal.
void Snapshots::progress(const std::string& run, bool failed) {
  Saving& saving = saving_.at(run);
  saving.failed |= failed;
  if (--saving.left > 0) return;
  const Saving done = std::move(saving_.extract(run).mapped());
  if (done.failed) return;
  history_.append(done.record, [this, run, record = done.record](uint64_t, const auto& error) {
    if (error) return;
    const std::string before = std::exchange(states_[run].last, record).folder;
    on_taken_(record);
    if (before.empty()) return;
    // Renamed first: a folder that a backup still sees has all of its files.
    const fs::path gone = path_of(before) + ".old";
    std::error_code ignored;  // what stays takes room, and nothing else
    fs::rename(path_of(before), gone, ignored);
    fs::remove_all(gone, ignored);
  });
}

bool Snapshots::restore(const std::map<std::string, Snapshotted>& snapshots, bool exact,
                        const Standing& standing) {
  if (restored_.empty()) restored_ = to_restore_ = snapshots;
  while (!to_restore_.empty()) {
    const Snapshotted& snapshot = to_restore_.begin()->second;
    std::vector<engine::Accepted> accepted;
    try {
      accepted.push_back(backend_.check(standing(
          {.tenant = snapshot.run, .directory = path_of(snapshot.folder)}, snapshot.owner)));
      accepted.push_back(backend_.check(engine::Load{.tenant = snapshot.run,
                                                     .directory = path_of(snapshot.folder),
                                                     .optimizer = true,
                                                     .exact = exact}));
    } catch (const Error& e) {
      if (e.code == Code::kBusy) return false;
      fail(e.code, "server: the snapshot of the run '", snapshot.run, "': ", e.what());
    }
    for (engine::Accepted& a : accepted) {
      ++num_restoring_;
      backend_.submit(std::move(a), [this, run = snapshot.run](const engine::Outcome& outcome) {
        loop_.post([this, run, error = outcome.error] {
          --num_restoring_;
          if (error && trouble_.empty()) trouble_ = run;
        });
      });
    }
    states_[snapshot.run].last = snapshot;
    to_restore_.erase(to_restore_.begin());
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
  require(trouble_.empty(), Code::kInvalid, "server: the snapshot of the run '", trouble_, "' in ",
          folder_.string(), " cannot be read");
  if (is_restoring()) return false;
  if (!std::exchange(has_removed_, true)) remove_leftovers();
  return true;
}

// The journal is this process's by now, so that no other is saving here.
void Snapshots::remove_leftovers() const {
  std::set<std::string> named;
  for (const auto& [run, snapshot] : restored_) {
    named.insert(snapshot.folder);
    named.insert(snapshot.versions.begin(), snapshot.versions.end());
  }
  std::error_code ignored;  // what stays takes room, and nothing else
  for (const std::string& run : names_in(folder_, ignored))
    for (const std::string& name : names_in(folder_ / run, ignored))
      if (!named.contains(run + "/" + name)) remove_tree(folder_ / run / name);
}

}  // namespace twinkle::server
