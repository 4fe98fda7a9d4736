// Snapshots of runs, so that a start does not have to do all of their training again: the weights,
// the optimizer, gradients that no step has taken and the published versions, as they are right
// behind a request. Used by the service's thread alone.
#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "twinkle/base/fields/options.h"
#include "twinkle/server/history/history.h"
#include "twinkle/server/loop.h"
#include "twinkle/server/service/backend.h"

namespace twinkle::server {

struct Run;

struct SnapshotOptions {
  std::chrono::milliseconds every{60000};

  static constexpr auto fields() {
    return std::tuple{
        option("snapshot_seconds", &SnapshotOptions::every, between(0, 86400),
               "seconds after which a run that steps is saved, so that a start has less to compute "
               "again; 0: at each step")};
  }
};

class Snapshots {
 public:
  using OnTaken = std::function<void(const Snapshotted&, const std::filesystem::path& before)>;

  // `on_taken` is told of each that is there, and of the folder that it takes the place of, which
  // is the caller's to remove; or of none.
  Snapshots(Backend& backend, Loop& loop, History& history, std::filesystem::path folder,
            SnapshotOptions options, OnTaken on_taken)
      : backend_(backend),
        loop_(loop),
        history_(history),
        folder_(std::move(folder)),
        options_(options),
        on_taken_(std::move(on_taken)) {}

  // The engine has just been given an optim_step of the run. Saves the run if it is time. One that
  // fails is not there, and the next step tries again.
  void stepped(const Run& run);
  // Saves the run if the engine has been given more of it than its last snapshot has, and the one
  // that is being made: nothing may come of it for long, and a start would do all of that again.
  void catch_up(const Run& run);
  // Saves the run behind all that the engine has been given of it. False: it is being saved, or
  // there is no room.
  bool take(const Run& run);
  // An end is written down.
  void ended(const std::string& run, int64_t seq_id);

  // The number that the run's last snapshot is behind, and that of the one that is being saved; -1:
  // none.
  int64_t last(const std::string& run) const;
  int64_t saving(const std::string& run) const;
  // Each run's last.
  std::vector<Snapshotted> all() const;
  // Told whenever a snapshot is there, or has failed.
  void on_change(std::function<void()> told) { on_change_ = std::move(told); }

  bool is_saving(const std::string& run) const { return saving_.contains(run); }
  bool is_saving() const { return !saving_.empty(); }

  // Of a folder that a record names.
  std::string path_of(const std::string& folder) const { return (folder_ / folder).string(); }

  // A Create with the weight and priority that the run of a snapshot goes on by.
  using Standing = std::function<engine::Create(engine::Create, const Snapshotted& of)>;
  // At the beginning of a replay: gives the engine the runs as they were saved. `exact`: they go on
  // bit for bit, which takes the arithmetic that saved them. False: there is no room yet, ask
  // again.
  bool restore(const std::map<std::string, Snapshotted>& snapshots, bool exact,
               const Standing& standing);
  bool is_restoring() const { return num_restoring_ > 0; }
  // Whether what the run's request changed is in its snapshot. Of a replay; the creation is 0.
  bool covers(const std::string& run, int64_t seq_id) const;
  // The folder of a version that was published before the snapshot; or nothing.
  std::optional<std::string> version(const std::string& run, int64_t version) const;
  // Error kInvalid: a snapshot could not be read, with its folder and why. False: not yet. Removes
  // what is older than the snapshots that the journal names, and what is half written of theirs: a
  // kill left it.
  bool finish_restore();

 private:
  struct State {
    std::chrono::steady_clock::time_point at = std::chrono::steady_clock::now();
    Snapshotted last;
  };
  struct Saving {
    Snapshotted record;
    std::set<int64_t> running;  // numbers that it covers and that have not ended
    int64_t left = 0;           // saves
    bool failed = false;
  };

  void progress(const std::string& run);
  void written(const Snapshotted& record);
  void remove_leftovers() const;

  Backend& backend_;
  Loop& loop_;
  History& history_;
  const std::filesystem::path folder_;
  const SnapshotOptions options_;
  const OnTaken on_taken_;
  std::function<void()> on_change_ = [] {};
  std::map<std::string, State> states_;
  std::map<std::string, Saving> saving_;  // by run
  std::map<std::string, Snapshotted> restored_;
  std::deque<engine::Operation> to_restore_;
  int64_t num_restoring_ = 0;
  bool has_removed_ = false;
  std::string trouble_;
};

}  // namespace twinkle::server
