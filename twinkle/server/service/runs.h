// Training runs: each takes its requests in the order of their numbers, however they come, gives
// them to the engine, and ends their promises. A window is the requests up to an optim_step; one
// that has a failure is dropped as a whole, so that no step is made on half a batch. Used by the
// service's thread alone.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "twinkle/server/history/number_set.h"
#include "twinkle/server/replay/decisions.h"
#include "twinkle/server/service/backend.h"
#include "twinkle/server/service/operations.h"
#include "twinkle/server/service/promises.h"
#include "twinkle/server/service/snapshots.h"

namespace twinkle::server {

struct Run {
  std::string id, owner, base_model;
  int64_t rank = 0;
  std::string key_id = {};  // of the key that made it; empty where keys are not asked for
  bool finished = false;    // its session has: no new requests
  int64_t last_ms = 0;      // since 1970, when its last request was accepted
  // True where its adapter is on a group of modules, by Tinker's names: "train_attn" and the like.
  std::map<std::string, bool> trains = {};

  struct Refusal {
    std::string why;
    bool breaks_window = false;
    bool is_told = false;  // by the request's promise: it had been accepted
  };
  struct Running {
    bool accumulates = false;  // or steps
    bool publishes = false, saves = false;
  };
  std::map<int64_t, Refusal> refused;  // by seq_id; until all before has ended, ...
  NumberSet refused_before;            // ... and then of those that are not told: their numbers
  int64_t first_missing = 1;           // the lowest number that did not come
  // By seq_id: for a lower number, or, an optim_step, for the end of its window; null: refused.
  std::map<int64_t, std::shared_ptr<Pending>> waiting;
  int64_t next = 1;                    // the number that is next in order
  int64_t given = 0;                   // the last number that the engine has been given
  std::map<int64_t, Running> running;  // that have had their turn and not ended
  int64_t num_creating = 0;            // operations that make the run, which have not ended
  bool is_made = false;                // the engine has it, ...
  bool is_unloaded = false;            // ... but not what it was to begin with: its load failed
  int64_t num_published = 0;           // versions, which the engine counts likewise
  std::set<std::string> saved;         // KIND/NAME of saves that were accepted
  std::map<int64_t, std::filesystem::path> folders;  // of saves that have not ended
  std::string broken;                                // why the window is dropped, or empty
  int64_t last_step = 0;                             // the number of the last optim_step, ...
  std::string broken_at_step;                        // ... and why its window was dropped

  std::string request_id(int64_t seq_id) const { return id + ":" + std::to_string(seq_id); }
  bool is_refused(int64_t seq_id) const {
    const auto found = refused.find(seq_id);
    return refused_before.contains(seq_id) || (found != refused.end() && !found->second.is_told);
  }
  // As the end of a text; "": nothing is kept of it, all before has ended.
  std::string why_refused(int64_t seq_id) const {
    const auto found = refused.find(seq_id);
    return found == refused.end() || found->second.why.empty() ? "" : ": " + found->second.why;
  }
  bool came(int64_t seq_id) const {
    return (seq_id >= 1 && seq_id < next) || waiting.contains(seq_id);
  }
  // Whether an optim_step must wait: what may still break its window has not ended. A Save, say,
  // may be written beside it.
  bool is_window_open() const {
    return num_creating > 0 || std::ranges::any_of(running, [](const auto& request) {
             return request.second.accumulates;
           });
  }
  // The first number that has not ended: of a request that runs, or that has not come. Saves that
  // the engine has been given do not count: later requests may end before them.
  int64_t first_unended() const {
    for (const auto& [seq_id, what] : running)
      if (!what.saves || seq_id > given) return seq_id;
    return next;
  }
};

// A request's number in its run, the id of the key that it came with, and when, in ms since 1970.
struct Numbered {
  int64_t seq_id = 0;
  std::string key_id = {};
  int64_t time_ms = 0;
};

class Runs {
 public:
  // A request that comes must not be further ahead of the first that is missing.
  static constexpr int64_t kMaxAhead = 4096;

  Runs(Backend& backend, Decisions& decisions, Promises& promises, Operations& operations,
       Snapshots& snapshots)
      : backend_(backend),
        decisions_(decisions),
        promises_(promises),
        operations_(operations),
        snapshots_(snapshots) {}

  Run* find(const std::string& id);  // null: none of this id
  const std::map<std::string, Run>& all() const { return runs_; }
  Run& add(Run run);
  // Each right before the first of its requests that has not ended; folders are told below `state`.
  // Nothing: one is being made. And back.
  std::optional<std::vector<RunState>> state(const std::filesystem::path& state) const;
  void restore(const RunState& from, const std::filesystem::path& state);

  // Takes a request by its number and returns its request_id: that of the first with the number.
  // Errors as of Backend::validate; the number is used up then. kInvalid, too: a number below 1, or
  // too far ahead, a run whose session has finished; kBusy as of Promises::require_room.
  std::string submit(Run& run, const Numbered& number, Ready ready, Source source = {},
                     Pending::OnEnd on_end = {});
  // The number of a request that was refused before it became an operation.
  void refuse(Run& run, int64_t seq_id, const std::string& why, bool breaks_window);
  // One that has no number: what creates the run. Later ones wait for it.
  void submit_first(Run& run, const std::shared_ptr<Pending>& pending);
  // The run's session has ended: what waits for a number that did not come ends, failed, and its
  // numbers are used up. What the engine has been given of it is saved.
  void end_session(Run& run);

 private:
  void take(Run& run, int64_t seq_id, const std::shared_ptr<Pending>& pending);
  void go_on(Run& run);
  void start(Run& run, int64_t seq_id, const std::shared_ptr<Pending>& pending);
  void end(const std::string& run_id, int64_t seq_id, bool accumulates, const Ended& ended);

  Backend& backend_;
  Decisions& decisions_;
  Promises& promises_;
  Operations& operations_;
  Snapshots& snapshots_;
  std::map<std::string, Run> runs_;
};

}  // namespace twinkle::server
