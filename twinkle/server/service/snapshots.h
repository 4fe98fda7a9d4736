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
  // One that is there, the sequence of its record, and the folder that it takes the place of, or
  // none. That is the caller's to remove, once the record is synced: a start without it needs the
  // folder.
  using OnTaken = std::function<void(const Snapshotted&, uint64_t sequence,
                                     const std::filesystem::path& before)>;

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
  // It has just been given a Publish of the run. Saves the run if many versions are in no snapshot:
  // the engine keeps each until it is.
  void published(const Run& run);
  // Saves the run if the engine has been given more of it than its last snapshot has, and the one
  // that is being made: nothing may come of it for long, and a start would do all of that again.
  void catch_up(const Run& run);
  // Saves the run behind all that the engine has been given of it, as soon as the engine has room.
  // False: it is being saved, or the engine does not have it.
  bool take(const Run& run);
  // The engine has room for one more operation of the run, before its line takes it.
  void has_room(const Run& run);
  // An end is written down.
  void ended(const std::string& run, int64_t seq_id);

  // The number that the run's last snapshot is behind, and that of the one that is being saved; -1:
  // none.
  int64_t last(const std::string& run) const;
  int64_t saving(const std::string& run) const;
  // Each run's last.
  std::vector<Snapshotted> all() const;
  // Told why a snapshot waits for room, once of each that does.
  void on_put_off(std::function<void(const std::string& text)> told) {
    on_put_off_ = std::move(told);
  }
  // Told whenever a snapshot is there, or has failed.
  void on_change(std::function<void()> told) { on_change_ = std::move(told); }

  // Whether one of the run waits for room: it will be behind what the engine has been given then.
  bool is_put_off(const std::string& run) const { return put_off_.contains(run); }
  bool is_saving() const { return !saving_.empty() || !put_off_.empty(); }

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
    std::set<int64_t> running;         // numbers that it covers and that have not ended
    std::deque<engine::Save> to_give;  // of versions: any time is as good, the engine keeps them
    int64_t num_given = 0;             // saves that have not ended
    bool failed = false;
    bool waits = false;    // for room
    bool is_told = false;  // to the journal
  };

  struct Restoring {
    engine::Operation operation;
    int64_t bytes = 0;  // its files, which are in memory until it has ended
  };

  void put_off(const Run& run, const std::string& why);
  void try_again(const std::string& run);
  void give(const std::string& run, engine::Accepted save);
  void give_versions(const std::string& run);
  void progress(const std::string& run);
  void written(const Snapshotted& record, uint64_t sequence);
  void remove_leftovers() const;

  Backend& backend_;
  Loop& loop_;
  History& history_;
  const std::filesystem::path folder_;
  const SnapshotOptions options_;
  const OnTaken on_taken_;
  std::function<void()> on_change_ = [] {};
  std::function<void(const std::string&)> on_put_off_ = [](const auto&) {};
  std::map<std::string, State> states_;
  std::map<std::string, Saving> saving_;       // by run
  std::map<std::string, const Run*> put_off_;  // likewise
  std::map<std::string, Snapshotted> restored_;
  std::deque<Restoring> to_restore_;
  int64_t num_restoring_ = 0, restoring_bytes_ = 0;  // that the engine has been given
  bool has_removed_ = false;
  std::string trouble_;
};

}  // namespace twinkle::server
