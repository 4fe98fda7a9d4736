// All that the handlers of the service share: sessions, training runs, samplers and promises. Used
// by the service's thread alone.
#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "twinkle/base/json.h"
#include "twinkle/server/auth/access.h"
#include "twinkle/server/history/history.h"
#include "twinkle/server/history/number_set.h"
#include "twinkle/server/history/truncation.h"
#include "twinkle/server/loop.h"
#include "twinkle/server/metrics/metrics.h"
#include "twinkle/server/replay/decisions.h"
#include "twinkle/server/service/backend.h"
#include "twinkle/server/service/operations.h"
#include "twinkle/server/service/promises.h"
#include "twinkle/server/service/runs.h"
#include "twinkle/server/service/snapshots.h"
#include "twinkle/server/tenants/amounts.h"
#include "twinkle/server/tenants/kept.h"
#include "twinkle/server/tenants/put_off.h"
#include "twinkle/server/tenants/rates.h"
#include "twinkle/server/tenants/silence.h"
#include "twinkle/server/tenants/usage.h"
#include "twinkle/server/worker.h"

namespace twinkle::server {

namespace openai {
class Api;
}

struct Session {
  std::string id, owner;
  bool finished = false;                    // no more runs
  std::map<int64_t, std::string> runs;      // request_id by model_seq_id
  std::map<int64_t, std::string> samplers;  // sampler id by sampling_session_seq_id
};

// Of the run that is the session's `model_seq_id`th.
inline std::string run_id(const Session& session, int64_t model_seq_id) {
  return session.id + ":train:" + std::to_string(model_seq_id);
}

struct Sampler {
  std::string id, owner, base_model;
  std::string model_path;  // of a named checkpoint; or empty
  std::string tenant;      // of the engine
  int64_t version = 0;     // of its weights; 0: those of a tenant that nobody trains
  NumberSet came;          // seq_ids of requests
  std::string key_id;      // of the run whose version it is, with whose weight it samples; or empty
};

struct Checkpoint {
  std::string owner, base_model;
  int64_t rank = 0;
  std::filesystem::path folder;
  std::map<std::string, bool> trains = {};  // as Run's
};

// A new id, as a client might see anywhere: 32 hexadecimal digits of the system's randomness.
std::string new_id();

// A file of the served model that anybody may read (handlers/hub.cpp).
struct HubFile {
  std::string etag;  // of these bytes
  std::shared_ptr<const std::string> bytes;
};

inline constexpr const char* kRefused = "refused";  // stable_reinforce is

struct ServiceOptions {
  SnapshotOptions snapshots;
  PromiseOptions promises;
  store::JournalOptions journal;
  TruncationOptions truncation;
  LineOptions lines;
  SilenceOptions silence;
  KeptOptions kept;
  std::string stable_reinforce = kRefused;

  static constexpr auto fields() {
    return std::tuple{group("snapshots", &ServiceOptions::snapshots),
                      group("promises", &ServiceOptions::promises),
                      group("journal", &ServiceOptions::journal),
                      group("truncation", &ServiceOptions::truncation),
                      group("lines", &ServiceOptions::lines),
                      group("silence", &ServiceOptions::silence),
                      group("kept", &ServiceOptions::kept),
                      option("stable_reinforce", &ServiceOptions::stable_reinforce,
                             one_of(kRefused, "importance_sampling"),
                             "computed in place of that loss, whose formula is not public and for "
                             "which clients ask by default")};
  }
};

class Services {
 public:
  Services(Backend& backend, Loop& loop, std::filesystem::path state,
           const ServiceOptions& options = {});

  // There is none of the id.
  void add(Session session);
  Sampler& add(Sampler sampler);
  // Queues a Sample, which belongs to no run's order, and opens its promise. Errors as of
  // Backend::validate; kBusy: it cannot be given to the engine at once, or as of
  // Promises::require_room.
  void sample(const std::string& owner, const std::string& key_id,
              std::shared_ptr<Pending> pending);
  // The same of one with a listener, which has no promise and is in no journal.
  void sample_live(const std::string& owner, std::shared_ptr<Pending> pending);
  // The engine's tenant by which this owner samples the base model, or its checkpoint's adapter;
  // the engine gets it by make(), and before that, of a checkpoint, by prepare().
  std::string tenant_of_base(const std::string& owner);
  // With the weight and priority of this key, if it has its own.
  std::string tenant_of(const std::filesystem::path& checkpoint, const std::string& owner,
                        const std::string& key_id = {});
  // What the owner may use now, as `twinkle keys` says.
  store::Quota quota_of(const std::string& owner, const std::string& key_id = {}) const {
    return access.quota(owner, key_id);
  }
  // From here on `access` follows its file.
  void watch_keys() {
    access.watch({loop, keys_disk}, [this] { return promises.num_ever(); });
  }
  // With the weight and priority of the key, or else of the owner.
  engine::Create standing(engine::Create create, const std::string& owner,
                          const std::string& key_id = {});
  // If it is one of these, and the engine has not got it: has its checkpoint read in the owner's
  // turn, gives it to the engine and then calls `then`; at once where there is nothing to read.
  // `refused`: why the engine never takes it, or "".
  void prepare(const std::string& tenant, const std::string& owner,
               std::function<void(const std::string& refused)> then);
  // Whose checkpoint need not be read, or has been. Errors as of Backend::check; kBusy, too: it has
  // not. Where the engine has failed to make it, its Samples end with that error, and the next
  // prepare() tries again. A replay makes at its end those for which work is left.
  void make(const std::string& tenant);
  // Where a run's next save of this name goes. Error kInvalid: no such name.
  std::filesystem::path new_folder(const Run& run, int64_t seq_id, const std::string& kind,
                                   const std::string& name) const;

  // Does again what the journal in the state's folder holds, tells how many records that were, and
  // writes down what follows; called by another thread than the service's. `command` runs a request
  // that was journalled. Error kInvalid: damaged, or of another model; or of `other_arithmetic`,
  // unless that is accepted: results will differ from what they would have been.
  int64_t open(
      const Opened& opened, bool accept_other_arithmetic,
      const std::function<void(uint64_t sequence, const Command&)>& command,
      const std::function<void()>& turn = [] {});
  // What the service is between two records; nothing: it cannot be told now, for what has ended is
  // not all before what has not. And back, before what it carries is done again.
  std::optional<State> take_state() const;
  void restore(const State& state, int64_t kept_from_ms);

  // `name`: Error kInvalid: no model of this name is served, with those that are. A decision.
  void require_model(const std::string& name);

  // Saves each run of which the engine has been given more than its snapshot has, so that a start
  // does none of it again; calls `done` when these saves have ended, however they did.
  void save_runs(const std::function<void()>& done);
  // As a kill would end it, but in order: before the engine is closed, which then ends nothing that
  // a client is told of. The next start does it.
  void close(const std::function<void()>& turn = [] {}) {
    disk.close();  // whose jobs tell the loop, which may end before this, and wait for the journal
    reads.close();
    texts.close();
    history.close([this] { operations.close(); }, turn);
    keys_disk.close();
  }

  Backend& backend;
  Loop& loop;
  const std::filesystem::path state;
  const std::string stable_reinforce;  // the option
  JsonObject client_flags;  // what client/config answers; the SDK's defaults where it is empty
  Access access;            // who may come in; everybody, unless it is set
  Metrics metrics;
  History history;
  Decisions decisions;  // on the request whose turn it is
  Rates rates;
  Usage usage;
  Promises promises;
  Operations operations;
  Snapshots snapshots;
  Runs runs;
  PutOff put_off;
  Truncation truncation;
  Silence silence;
  Amounts amounts;
  Kept kept;
  std::map<std::string, Session> sessions;
  std::map<std::string, Sampler> samplers;
  std::map<std::string, Checkpoint> checkpoints;  // by their path
  std::shared_ptr<openai::Api> openai_api;        // from the first request to it on
  std::map<std::string, HubFile> hub_files;       // by name; of the disk's thread alone
  Worker disk;       // for what waits for a disk and is not the journal's; ends before those above
  Worker reads;      // for checkpoints alone, which take long: nothing short waits behind them
  Worker texts;      // for templates and tokenizers of texts, which may be long
  Worker keys_disk;  // for the keys' file alone: no job of the other keeps a revoked key alive

 private:
  struct Made {
    bool failed = false;
    bool asked = true;  // for, since the last check of `silence`, ...
    int64_t quiet = 0;  // ... and checks since it was
  };
  // What the engine has still to get as this tenant; null: nothing.
  const engine::Create* unmade(const std::string& tenant) const;
  void give(const std::string& tenant, engine::Accepted create);
  // Has the engine forget those that nobody has asked for in so many checks: they are read again.
  void let_go_of_quiet();
  // Makes them one after another, and takes away those that are made; false: there is no room yet.
  bool make_all(std::set<std::string>& tenants);
  void save_once(const std::function<void()>& done);
  void wait_for_saves(const std::function<void()>& done);
  void used(const Promises::Made& of, const Ended& ended);
  // Samplers of versions that a snapshot holds sample its folders from here on, and the engine lets
  // the versions go; but for the newest, which is sampled most.
  void release_saved(const Snapshotted& snapshot);
  // Once the record that names the one in its place is synced: until then a loss of power makes a
  // start go on from this one.
  void remove_snapshot(const std::filesystem::path& folder, uint64_t sequence);

  const ServiceOptions options_;
  std::vector<Opened> starts_;                                // of this state, one of each kind
  std::map<std::string, engine::Create> sampled_;             // by tenant: those that nobody trains
  std::map<std::string, Made> made_;                          // of those that the engine was given
  std::map<std::string, std::set<std::string>> of_versions_;  // by run, ids of its samplers
  std::map<std::string, std::vector<std::function<void(const std::string&)>>> preparing_;
};

}  // namespace twinkle::server
