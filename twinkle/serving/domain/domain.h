// The service's state, and how each record changes it. Nothing here asks, waits or computes: what
// a record makes possible is told as effects, which a server that runs has done (core.h), and a
// start drops, for it goes by what is left at the end. Used by the service's thread alone.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "twinkle/engine/protocol/operation.h"
#include "twinkle/serving/domain/commands.h"

namespace twinkle::server::core {

// A request must not be further ahead of the first number that is missing.
inline constexpr int64_t kMaxAhead = 4096;

// The words of an operation that has not ended, or must be done again; the rest is in the journal.
struct Op {
  uint64_t sequence = 0;     // its record's
  int64_t bytes = 0;         // its record's
  bool accumulates = false;  // or steps: its failure breaks the window
  bool steps = false, publishes = false, saves = false, samples = false, changes_engine = false;
  std::string reads;  // a checkpoint's folder below the state's, or empty
  Used used;          // without what its end adds
  Checkpoint saves_as = {};
  std::string sampler = {};
};

Op op_of(const engine::Operation& operation, int64_t bytes, uint64_t sequence);

inline std::string request_id(const std::string& of, int64_t seq_id) {
  return of + ":" + std::to_string(seq_id);
}
// The run or sampler, and the number. Any text.
std::pair<std::string, int64_t> parse_request_id(const std::string& id);

int64_t first_missing(const Run& run);
inline bool came(const Run& run, int64_t seq_id) {
  return (seq_id >= 0 && seq_id < run.next) || run.work.contains(seq_id);
}

// The value of the key; null: there is none.
template <class Map, class Key>
auto* find(Map& map, const Key& key) {
  const auto found = map.find(key);
  return found == map.end() ? nullptr : &found->second;
}

class Domain {
 public:
  struct Effects {
    std::vector<std::string> created;                      // runs, to be made by the engine
    std::vector<std::pair<std::string, int64_t>> started;  // run, seq_id: their turn has come
    std::vector<std::string> ended;                        // futures
    std::vector<std::string> finished;                     // runs that take no more requests
    std::vector<std::string> closed;                       // sessions: nobody reads samples
    std::vector<std::string> deleted;                      // runs that are no more
    std::vector<std::string> kept;                         // checkpoints, to be kept so long
  };

  // Changes it by a record, one after another. Error kInvalid: it names what is not there, which a
  // whole journal does not.
  void apply(const Opened& record, uint64_t sequence);
  void apply(const OpenSession& record, uint64_t sequence);
  void apply(const FinishSession& record, uint64_t sequence);
  void apply(const FinishRun& record, uint64_t sequence);
  void apply(const CreateRun& record, uint64_t sequence);
  void apply(const Submit& record, uint64_t sequence) {
    apply(record, sequence, op_of(record, sequence));
  }
  // `op`: of its operation, which who made it need not read again.
  void apply(const Submit& record, uint64_t sequence, Op op);
  void apply(const Fail& record, uint64_t sequence);
  void apply(const OpenSampler& record, uint64_t sequence);
  void apply(const Sample& record, uint64_t sequence);
  void apply(const Ended& record, uint64_t sequence);
  void apply(const Read& record, uint64_t sequence);
  void apply(const Snapshotted& record, uint64_t sequence);
  void apply(const Lost& record, uint64_t sequence);
  void apply(const KeepCheckpoint& record, uint64_t sequence);
  void apply(const DeleteCheckpoint& record, uint64_t sequence);
  void apply(const DeleteRun& record, uint64_t sequence);
  void apply(const State& record, uint64_t sequence);
  // A record that a State carries, behind it.
  void carry(const Record& record, uint64_t sequence);
  // One of a journal, as Log gives it; its effects are dropped.
  void replay(const Record& record, uint64_t sequence, bool is_carried);
  Effects take_effects() { return std::exchange(effects_, {}); }

  // Its value; of `sequence`, the last record that was applied.
  State state(uint64_t sequence, int64_t time_ms) const;
  // Records that a state needs besides itself.
  static std::set<uint64_t> carried(const State& state);

  // The use of a request that no record tells.
  void count(const std::string& owner, const std::string& key_id, const std::string& of,
             const Used& used) {
    usage_.add(owner, key_id, of, used);
  }
  // A result that was read long ago, and is kept no longer.
  void forget(const std::string& future);
  // It was removed from the disk.
  void removed(const std::string& folder) { removing_.erase(folder); }
  // Folders that may be removed now: no run begins with them or reads them.
  std::vector<std::string> removable() const;

  // Null: there is none.
  const Session* session(const std::string& id) const { return find(sessions_, id); }
  const Run* run(const std::string& id) const { return find(runs_, id); }
  const Sampler* sampler(const std::string& id) const { return find(samplers_, id); }
  const Checkpoint* checkpoint(const std::string& path) const { return find(checkpoints_, path); }
  const Future* future(const std::string& id) const { return find(futures_, id); }
  // The words of a request that has not ended.
  const Op* op(uint64_t sequence) const { return find(ops_, sequence); }

  const std::map<std::string, Session>& sessions() const { return sessions_; }
  const std::map<std::string, Run>& runs() const { return runs_; }
  const std::map<std::string, Sampler>& samplers() const { return samplers_; }
  const std::map<std::string, Checkpoint>& checkpoints() const { return checkpoints_; }
  const std::map<std::string, Future>& futures() const { return futures_; }
  const std::vector<Opened>& starts() const { return starts_; }
  // Operations that are done again give the bits that they gave.
  bool has_one_arithmetic() const {
    return std::ranges::all_of(starts_, [this](const Opened& start) {
      return start.arithmetic == starts_.back().arithmetic;
    });
  }
  const Usage& usage() const { return usage_; }
  int64_t num_futures() const { return num_futures_; }  // ever

  struct Open {
    int64_t num = 0, bytes = 0;
  };
  // An owner's futures that have not ended.
  Open open_of(const std::string& owner) const {
    const Open* const found = find(open_of_, owner);
    return found ? *found : Open();
  }
  int64_t num_open() const { return num_open_; }
  int64_t num_sessions(const std::string& owner) const { return count(num_sessions_, owner); }
  int64_t num_samplers(const std::string& owner) const { return count(num_samplers_, owner); }
  // Bytes on disk of checkpoints and snapshots, and of those adapters that are kept for samplers.
  int64_t num_disk_bytes(const std::string& owner) const;
  int64_t num_adapters(const std::string& owner) const;

 private:
  static Op op_of(const Submit& submit, uint64_t sequence);
  static int64_t count(const std::map<std::string, int64_t>& counts, const std::string& owner) {
    const int64_t* const found = find(counts, owner);
    return found ? *found : 0;
  }
  Run& run_of(const std::string& id);
  void open(Future future);
  void end(const std::string& id, uint64_t ended, const std::string& error);
  void finish(Run& run);
  void go_on(Run& run);
  void end_work(Run& run, int64_t seq_id, const Ended& ended);
  void add(Sampler sampler);
  bool is_needed(const std::string& folder) const;

  std::vector<Opened> starts_;
  std::map<std::string, Session> sessions_;
  std::map<std::string, Run> runs_;
  std::map<std::string, Sampler> samplers_;
  std::map<std::string, Checkpoint> checkpoints_;
  std::map<std::string, Future> futures_;
  std::map<uint64_t, Op> ops_;  // by sequence
  std::map<std::string, Open> open_of_;
  std::map<std::string, int64_t> num_sessions_, num_samplers_;
  std::set<std::string> removing_;
  Usage usage_;
  int64_t num_futures_ = 0, num_open_ = 0;
  Effects effects_;
};

}  // namespace twinkle::server::core
