// The service's knowledge as plain values: sessions, runs, samplers, checkpoints and futures. They
// are what commands (commands.h) make of nothing, and go into the state file as they are. No
// protocol's words: a checkpoint is RUN/KIND/NAME, which each protocol writes its own way.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "twinkle/base/fields.h"
#include "twinkle/server/tenants/usage.h"

namespace twinkle::server::core {

struct Session {
  std::string id, owner;
  int64_t created_ms = 0;     // since 1970
  bool finished = false;      // no more runs
  std::string user_metadata;  // JSON object as text, or empty
  std::vector<std::string> tags;
  std::map<int64_t, std::string> runs, samplers;  // ids, by the numbers that the client gave

  static constexpr auto fields() {
    return std::tuple{field(1, "id", &Session::id),
                      field(2, "owner", &Session::owner),
                      field(3, "created_ms", &Session::created_ms),
                      field(4, "finished", &Session::finished),
                      field(5, "user_metadata", &Session::user_metadata),
                      field(6, "tags", &Session::tags),
                      field(7, "runs", &Session::runs),
                      field(8, "samplers", &Session::samplers)};
  }
};

// How a run begins.
struct Origin {
  std::string lora_json;  // empty, and no folder: all weights
  uint64_t seed = 0;
  std::string folder;      // below the state's, of the checkpoint that it begins with; or empty
  bool optimizer = false;  // with the checkpoint's optimizer

  static constexpr auto fields() {
    return std::tuple{field(1, "lora_json", &Origin::lora_json), field(2, "seed", &Origin::seed),
                      field(3, "folder", &Origin::folder),
                      field(4, "optimizer", &Origin::optimizer)};
  }
};

// A run as it was behind its request `seq_id`, in folders below the state's snapshots/.
struct Snapshot {
  std::string folder;  // empty: there is none
  int64_t seq_id = 0;
  std::vector<std::string> versions;  // folders of the published ones, 1 and on
  int64_t bytes = 0;                  // on disk, of all of these

  static constexpr auto fields() {
    return std::tuple{field(1, "folder", &Snapshot::folder), field(2, "seq_id", &Snapshot::seq_id),
                      field(3, "versions", &Snapshot::versions),
                      field(4, "bytes", &Snapshot::bytes)};
  }
};

// A request of a run that was accepted and has not ended, or that a start must do again.
struct Work {
  enum State : int32_t {
    kWaiting,  // for a lower number or, an optim_step, for the end of its window
    kStarted,
    kEnded,  // it changed the engine, and the run's snapshot is older
  };
  int32_t state = kWaiting;
  uint64_t sequence = 0;       // its Submit's in the journal; 0: it failed before it became one
  std::string why;             // it failed; or, of a step that `drops`, what broke its window
  bool breaks_window = false;  // by that failure
  bool drops = false;          // a step that clears the gradients of a broken window instead
  uint32_t digest = 0;         // kEnded: of its result, which doing it again must give

  static constexpr auto fields() {
    return std::tuple{
        field(1, "state", &Work::state), field(2, "sequence", &Work::sequence),
        field(3, "why", &Work::why),     field(4, "breaks_window", &Work::breaks_window),
        field(5, "drops", &Work::drops), field(6, "digest", &Work::digest)};
  }
};

struct Run {
  std::string id, owner, key_id, base_model, session;
  int64_t rank = 0;
  std::map<std::string, bool> trains;   // groups of modules, by "train_attn" and the like
  std::vector<std::string> targets;     // modules that have adapters; empty: not known, all perhaps
  std::string user_metadata;            // JSON object as text, or empty
  int64_t created_ms = 0, last_ms = 0;  // since 1970; `last`: its last request was accepted
  Origin origin;
  bool is_made = false;          // the engine has made it once
  bool finished = false;         // it takes no more requests
  std::string lost;              // why nothing can be done with it any more, or empty
  int64_t next = 1;              // the number that is next in order
  std::map<int64_t, Work> work;  // by number
  std::string broken;            // why the window is dropped, or empty
  int64_t num_published = 0;     // versions, which the engine counts likewise
  Snapshot snapshot;
  std::vector<std::string> saved;  // KIND/NAME of all saves that were ever accepted
  double computed = 0;             // seconds of the engine since the snapshot

  static constexpr auto fields() {
    return std::tuple{field(1, "id", &Run::id),
                      field(2, "owner", &Run::owner),
                      field(3, "key_id", &Run::key_id),
                      field(4, "base_model", &Run::base_model),
                      field(5, "session", &Run::session),
                      field(6, "rank", &Run::rank),
                      field(7, "trains", &Run::trains),
                      field(8, "user_metadata", &Run::user_metadata),
                      field(9, "created_ms", &Run::created_ms),
                      field(10, "last_ms", &Run::last_ms),
                      field(11, "origin", &Run::origin),
                      field(12, "is_made", &Run::is_made),
                      field(13, "finished", &Run::finished),
                      field(14, "lost", &Run::lost),
                      field(15, "next", &Run::next),
                      field(16, "work", &Run::work),
                      field(17, "broken", &Run::broken),
                      field(18, "num_published", &Run::num_published),
                      field(19, "snapshot", &Run::snapshot),
                      field(20, "saved", &Run::saved),
                      field(21, "computed", &Run::computed),
                      field(22, "targets", &Run::targets)};
  }
};

// A sampler samples the base model, a checkpoint, or a version that a run published.
struct Sampler {
  std::string id, owner, base_model;
  std::string key_id;  // the run's, by whose weight and priority it samples; or empty
  std::string session;
  std::string checkpoint;  // RUN/KIND/NAME, or empty
  std::string folder;      // the checkpoint's, below the state's
  std::string run;         // the run whose version it is, or empty
  int64_t version = 0;
  std::vector<int64_t> came;  // seq_ids of requests: first and last of each range

  static constexpr auto fields() {
    return std::tuple{field(1, "id", &Sampler::id),
                      field(2, "owner", &Sampler::owner),
                      field(3, "base_model", &Sampler::base_model),
                      field(4, "key_id", &Sampler::key_id),
                      field(5, "session", &Sampler::session),
                      field(6, "checkpoint", &Sampler::checkpoint),
                      field(7, "folder", &Sampler::folder),
                      field(8, "run", &Sampler::run),
                      field(9, "version", &Sampler::version),
                      field(10, "came", &Sampler::came)};
  }
};

// A folder of weights that a run saved under a name.
struct Checkpoint {
  std::string path;  // RUN/KIND/NAME; KIND is "weights", with the optimizer, or "sampler_weights"
  std::string owner, run, base_model;
  int64_t rank = 0;
  std::map<std::string, bool> trains;  // as Run's, like the next
  std::vector<std::string> targets;
  std::string folder;                      // below the state's
  int64_t bytes = 0;                       // on disk
  int64_t created_ms = 0, expires_ms = 0;  // since 1970; expires: 0: never
  bool is_public = false;                  // every key of this server may read it
  std::string user_metadata;               // JSON object as text, or empty

  static constexpr auto fields() {
    return std::tuple{field(1, "path", &Checkpoint::path),
                      field(2, "owner", &Checkpoint::owner),
                      field(3, "run", &Checkpoint::run),
                      field(4, "base_model", &Checkpoint::base_model),
                      field(5, "rank", &Checkpoint::rank),
                      field(6, "trains", &Checkpoint::trains),
                      field(7, "folder", &Checkpoint::folder),
                      field(8, "bytes", &Checkpoint::bytes),
                      field(9, "created_ms", &Checkpoint::created_ms),
                      field(10, "expires_ms", &Checkpoint::expires_ms),
                      field(11, "is_public", &Checkpoint::is_public),
                      field(12, "user_metadata", &Checkpoint::user_metadata),
                      field(13, "targets", &Checkpoint::targets)};
  }
};

// The result of a request that was accepted, now or later.
struct Future {
  std::string id, owner, key_id;
  int64_t number = 0;     // how many there had been, from 1 on
  uint64_t sequence = 0;  // the command's that opened it
  uint64_t ended = 0;     // the Ended's that holds the result; 0: it has none, or `error` is it
  bool is_ended = false;
  std::string error;    // a failure's that has no Ended
  int64_t read_ms = 0;  // since 1970, when it was given for the first time; 0: it was not
  int64_t bytes = 0;    // the request's, while it has not ended
  std::string note;     // the protocol's own, with which it writes the answer

  static constexpr auto fields() {
    return std::tuple{field(1, "id", &Future::id),
                      field(2, "owner", &Future::owner),
                      field(3, "key_id", &Future::key_id),
                      field(4, "number", &Future::number),
                      field(5, "sequence", &Future::sequence),
                      field(6, "ended", &Future::ended),
                      field(7, "is_ended", &Future::is_ended),
                      field(8, "error", &Future::error),
                      field(9, "read_ms", &Future::read_ms),
                      field(10, "bytes", &Future::bytes),
                      field(11, "note", &Future::note)};
  }
};

}  // namespace twinkle::server::core
