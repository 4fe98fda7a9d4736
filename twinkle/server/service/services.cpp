#include "twinkle/server/service/services.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/base/fields/options.h"
#include "twinkle/server/history/backup.h"
#include "twinkle/server/replay/brief.h"
#include "twinkle/store/keys/keys.h"

namespace twinkle::server {

namespace fs = std::filesystem;

namespace {

// With room for '@', a number and what a folder is called while it is written: files' names have at
// most 255 bytes.
constexpr size_t kMaxName = 200;

// Why rates hold the request, or the last before it in the run where it waits for its turn; or "".
// Those of a run go in their order: where its last is not held none is.
std::string why_held(const std::string& request_id, const Run* run, const Rates& rates) {
  std::string out = rates.reason(request_id);
  if (!out.empty() || !run || run->running.empty()) return out;
  return rates.reason(run->request_id(run->running.rbegin()->first));
}

// What a poll is told of a request that has not ended.
JsonObject queue_state(const std::string& request_id, const Rates& rates, Runs& runs) {
  const size_t colon = request_id.rfind(':');
  const Run* run = runs.find(request_id.substr(0, colon));
  int64_t seq_id = 0;
  std::from_chars(request_id.data() + colon + 1, request_id.data() + request_id.size(), seq_id);
  if (run && !run->waiting.contains(seq_id)) run = nullptr;
  if (const std::string why = why_held(request_id, run, rates); !why.empty())
    return {{"queue_state", "paused_rate_limit"}, {"queue_state_reason", why}};
  JsonObject out{{"queue_state", "active"}};
  if (run && run->first_missing < seq_id)
    out["queue_state_reason"] = "seq_id " + std::to_string(seq_id) + " waits for seq_id " +
                                std::to_string(run->first_missing) + ", which has not come";
  return out;
}

}  // namespace

std::string new_id() { return store::random_hex(16); }

Services::Services(Backend& backend, Loop& loop, fs::path state, const ServiceOptions& options)
    : backend(backend),
      loop(loop),
      state(std::move(state)),
      stable_reinforce(options.stable_reinforce),
      history(loop),
      rates(loop, [this](const std::string& owner) { return quota_of(owner); }),
      promises(
          options.promises, loop,
          {.on_read =
               [this](const std::string& id, int64_t time_ms) {
                 // Told again after a crash, if this is lost: no harm.
                 history.append(Read{id, time_ms}, [](uint64_t, auto) {});
               },
           .queue_state = [this](const std::string& id) { return queue_state(id, rates, runs); },
           .max_disk = [this](const std::string& owner) { return quota_of(owner).max_disk; },
           .sequence = [this] { return history.sequence(); },
           .read = [this](
                       uint64_t ended,
                       const Reader::Then& then) { history.read(ended, ReadFor::kPoll, then); }}),
      operations(options.lines, backend, {loop, reads}, history, rates, promises),
      snapshots(backend, loop, history, this->state / "snapshots", options.snapshots,
                [this](const Snapshotted& s, uint64_t sequence, const fs::path& before) {
                  release_saved(s);
                  remove_snapshot(before, sequence);
                  if (!before.empty()) amounts.changed(s.run, before);
                }),
      runs(backend, decisions, promises, operations, snapshots),
      put_off(loop, runs),
      truncation(loop, history, snapshots, runs, options.truncation,
                 [this] { return take_state(); }),
      silence(backend, loop, runs, snapshots, options.silence, [this] { let_go_of_quiet(); }),
      amounts(this->state),
      kept(options.kept),
      options_(options) {
  operations.hide_paths_of(this->state);
  operations.on_used([this](const Promises::Made& of, const Ended& ended) { used(of, ended); });
}

void Services::used(const Promises::Made& of, const Ended& ended) {
  usage.add(of.owner, of.key_id, ended.request_id, ended.used);
  if (!history.is_replaying()) rates.spend(of.owner, ended.used.generated, ended.used.seconds);
}

void Services::add(Session session) {
  kept.add(Kept::What::kSession, session.owner);
  const std::string id = session.id;
  sessions[id] = std::move(session);
}

Sampler& Services::add(Sampler sampler) {
  kept.add(Kept::What::kSampler, sampler.owner);
  const std::string id = sampler.id;
  if (sampler.version > 0) of_versions_[sampler.tenant].insert(id);
  return samplers[id] = std::move(sampler);
}

void Services::save_runs(const std::function<void()>& done) {
  // Twice: the first may have found an older one on its way. Not more: the disk may refuse.
  save_once([this, done] { save_once(done); });
}

void Services::save_once(const std::function<void()>& done) {
  for (const auto& [id, run] : runs.all()) snapshots.catch_up(run);
  wait_for_saves(done);
}

void Services::wait_for_saves(const std::function<void()>& done) {
  constexpr std::chrono::milliseconds kAgain{20};
  if (!snapshots.is_saving()) return done();
  loop.after(kAgain, [this, done] { wait_for_saves(done); });
}

void Services::sample(const std::string& owner, const std::string& key_id,
                      std::shared_ptr<Pending> pending) {
  pending->owner = owner;
  pending->held = backend.bytes_of(pending->ready->operation);
  decisions.decide([&] {
    backend.validate(pending->ready->operation);
    make(pending->tenant);
    operations.require_room(*pending);
    promises.require_room(owner, pending->held);
  });
  pending->came_before = decisions.is_decided();
  decisions.change([&] {
    promises.open(pending->request_id, owner, key_id, pending->held);
    operations.start(std::move(pending));
  });
}

void Services::sample_live(const std::string& owner, std::shared_ptr<Pending> pending) {
  pending->owner = owner;
  pending->held = backend.bytes_of(pending->ready->operation);
  backend.validate(pending->ready->operation);
  make(pending->tenant);
  operations.require_room(*pending);
  operations.start(std::move(pending));
}

const engine::Create* Services::unmade(const std::string& tenant) const {
  const auto found = sampled_.find(tenant);
  if (found == sampled_.end()) return nullptr;
  const auto made = made_.find(tenant);
  return made == made_.end() || made->second.failed ? &found->second : nullptr;
}

void Services::give(const std::string& tenant, engine::Accepted create) {
  Made& made = made_[tenant];  // before memory ends
  made.failed = true;
  backend.submit(std::move(create), [this, tenant](const engine::Outcome& outcome) {
    loop.post([this, tenant, error = outcome.error] {
      if (const auto found = made_.find(tenant); found != made_.end())
        found->second.failed = error != nullptr;
      operations.explain(tenant, error);  // before the first of its Samples ends
    });
  });
  made = {};
}

void Services::let_go_of_quiet() {
  for (auto it = made_.begin(); it != made_.end();) {
    const auto& [tenant, made] = *it;
    it->second.quiet = std::exchange(it->second.asked, false) ? 0 : made.quiet + 1;
    const bool is_read = !sampled_.at(tenant).directory.empty() && !made.failed;
    const bool goes =
        is_read && made.quiet >= Silence::kChecks && !operations.has_sample(tenant, 0);
    try {
      // It comes behind the Samples that have been given it.
      if (goes)
        backend.submit(backend.check(engine::Delete{tenant}), [](const engine::Outcome&) {});
      it = goes ? made_.erase(it) : std::next(it);
    } catch (const Error&) {
      ++it;  // there is no room; the next check tries again
    }
  }
}

void Services::prepare(const std::string& tenant, const std::string& owner,
                       std::function<void(const std::string& refused)> then) {
  if (const auto made = made_.find(tenant); made != made_.end()) made->second.asked = true;
  const engine::Create* const create = unmade(tenant);
  if (!create || create->directory.empty()) return then("");
  if (const auto found = preparing_.find(tenant); found != preparing_.end())
    return found->second.push_back(std::move(then));  // it is being read
  const auto checked = std::make_shared<std::optional<engine::Accepted>>();
  const auto told = [this, checked, tenant](const std::exception_ptr& error) {
    std::string refused;
    try {
      if (error) std::rethrow_exception(error);
      give(tenant, std::move(**checked));
    } catch (const Error& e) {
      if (e.code == Code::kBusy)
        made_.erase(tenant);  // make() says it
      else
        refused = brief(e.what());
    } catch (const std::exception&) {
      made_.erase(tenant);  // no memory, which is no room
    }
    const auto waiting = preparing_.extract(tenant);
    for (const auto& next : waiting.mapped()) next(refused);
  };
  try {
    preparing_[tenant].push_back(std::move(then));
    reads.run([this, checked, create = *create] { checked->emplace(backend.check(create)); }, loop,
              told, owner);
  } catch (...) {  // no memory: who comes meanwhile would wait for ever
    preparing_.erase(tenant);
    throw;
  }
}

void Services::make(const std::string& tenant) {
  const engine::Create* const create = unmade(tenant);
  if (!create) return;
  if (create->directory.empty()) return give(tenant, backend.check(*create));
  // One that failed is not asked for again here: the Samples tell of it.
  require(made_.contains(tenant), Code::kBusy,
          "server: the engine has no room for the checkpoint of this sampler now; come again");
}

bool Services::make_all(std::set<std::string>& tenants) {
  for (; !tenants.empty(); tenants.erase(tenants.begin())) {
    try {
      if (const engine::Create* const create = unmade(*tenants.begin()))
        give(*tenants.begin(), backend.check(*create, engine::Beyond::kAlone));
    } catch (const Error& e) {
      if (e.code != Code::kBusy) throw;
      return false;
    }
  }
  return true;
}

engine::Create Services::standing(engine::Create create, const std::string& owner,
                                  const std::string& key_id) {
  const store::Quota quota = quota_of(owner, key_id);
  create.weight = quota.weight;
  create.priority = quota.priority;
  return create;
}

std::string Services::tenant_of_base(const std::string& owner) {
  const std::string name = "base:" + owner;
  sampled_[name] = standing({.tenant = name, .frozen = true}, owner);
  return name;
}

std::string Services::tenant_of(const fs::path& checkpoint, const std::string& owner,
                                const std::string& key_id) {
  const std::string name = "sampler:" + checkpoint.lexically_relative(state).string();
  sampled_[name] = standing({.tenant = name, .directory = checkpoint.string()}, owner, key_id);
  return name;
}

// Renamed first: a folder that a backup still sees has all of its files. What stays, since the disk
// refuses or the server ends, takes room until the next start.
void Services::remove_snapshot(const fs::path& folder, uint64_t sequence) {
  if (folder.empty()) return;
  disk.run([this, folder, sequence] {
    if (!history.is_synced(sequence)) return;
    const fs::path gone = folder.string() + ".old";
    std::error_code ignored;
    fs::rename(folder, gone, ignored);
    fs::remove_all(gone, ignored);
  });
}

void Services::release_saved(const Snapshotted& snapshot) {
  amounts.saved(snapshot);
  bool has_room = true;
  const auto release = [&](const std::string& id) {
    Sampler& sampler = samplers.at(id);
    if (sampler.tenant != snapshot.run || sampler.version == 0) return true;
    if (!has_room || sampler.version >= std::ssize(snapshot.versions)) return false;
    if (operations.has_sample(sampler.tenant, sampler.version)) return false;  // the next one does
    const std::string& folder = snapshot.versions[static_cast<size_t>(sampler.version - 1)];
    try {
      // Behind the Samples that have been given the version.
      backend.submit(
          backend.check(engine::Release{.tenant = snapshot.run, .version = sampler.version}),
          [](const engine::Outcome&) {});
    } catch (const Error&) {
      return has_room = false;  // the next snapshot comes
    }
    sampler.tenant = tenant_of(snapshots.path_of(folder), sampler.owner, sampler.key_id);
    sampler.version = 0;
    return true;
  };
  const auto of_run = of_versions_.find(snapshot.run);
  if (of_run == of_versions_.end()) return;
  std::erase_if(of_run->second, release);
  if (of_run->second.empty()) of_versions_.erase(of_run);
}

fs::path Services::new_folder(const Run& run, int64_t seq_id, const std::string& kind,
                              const std::string& name) const {
  require(store::is_plain_name(name, kMaxName) && name != "." && name != "..", Code::kInvalid,
          "server: the name '", quoted(name), "' of a checkpoint must be 1 to ", kMaxName,
          " letters, digits, '.', '_' and '-'");
  // What an earlier save of the name wrote, or will write, stays: a replay may need it.
  const bool again = run.saved.contains(kind + "/" + name);
  return state / "checkpoints" / run.id / kind /
         (again ? name + "@" + std::to_string(seq_id) : name);
}

void Services::require_model(const std::string& name) {
  decisions.decide([&] {
    const auto& names = backend.model().names;
    if (std::ranges::find(names, name) != names.end()) return;
    std::string known;
    for (const std::string& n : names) known += (known.empty() ? "" : ", ") + n;
    const std::string nearest = nearest_of(name, names);
    fail(Code::kInvalid, "server: base_model '", quoted(name), "' is not served here, only ", known,
         nearest.empty() ? "" : "; did you mean '" + nearest + "'?");
  });
}

int64_t Services::open(const Opened& opened, bool accept_other_arithmetic,
                       const std::function<void(uint64_t, const Command&)>& command,
                       const std::function<void()>& turn) {
  bool same = true, given = false, is_whole = false;
  std::map<uint64_t, std::string> refused;
  std::set<std::string> samplers_to_make;
  // Outlives this call: the journal may tell of the record when a replay has failed.
  const auto written = std::make_shared<std::optional<std::exception_ptr>>();
  int64_t kept_from_ms = 0;
  const auto begin = [&](const History::Summary& summary) {
    starts_ = summary.starts;
    refused = summary.refused;
    kept_from_ms = summary.last_ms - options_.promises.keep_read.count();
    require_same(state, starts_, opened, accept_other_arithmetic);
    if (!std::exchange(is_whole, true)) require_whole(state, summary);
    same = std::ranges::all_of(  // as its model is
        starts_, [&](const Opened& start) { return start.arithmetic == opened.arithmetic; });
    return snapshots.restore(summary.snapshots, same,
                             [this](engine::Create create, const Snapshotted& of) {
                               return standing(std::move(create), of.owner, of.key_id);
                             });
  };
  const auto apply = [&](uint64_t sequence, const AnyRecord& record) {
    if (const auto* before = std::get_if<State>(&record)) restore(*before, kept_from_ms);
    if (const auto* sent = std::get_if<Command>(&record)) {
      const auto why = refused.find(sequence);
      decisions.recall(why == refused.end() ? "" : why->second);
      command(sequence, *sent);
    }
    if (const auto* ended = std::get_if<Ended>(&record)) operations.replay(*ended);
    if (const auto* read = std::get_if<Read>(&record)) {
      if (read->time_ms < kept_from_ms)
        promises.drop(read->request_id);
      else
        promises.restore_read(read->request_id, read->time_ms);
    }
  };
  const auto finish = [&] {
    if (!std::exchange(given, true)) {
      std::erase(starts_, opened);
      starts_.push_back(opened);
      history.append(opened, [written](uint64_t, const auto& error) { *written = error; });
      samplers_to_make = operations.waiting_samplers();
    }
    if (*written && **written) std::rethrow_exception(**written);
    return *written && make_all(samplers_to_make) && snapshots.finish_restore() &&
           operations.finish_replay(same);
  };
  return history.open(state / kJournal, {begin, apply, finish, turn}, options_.journal);
}

}  // namespace twinkle::server
