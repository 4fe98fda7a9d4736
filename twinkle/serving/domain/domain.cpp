#include "twinkle/serving/domain/domain.h"

#include <algorithm>
#include <charconv>
#include <variant>

#include "twinkle/base/error.h"
#include "twinkle/server/history/number_set.h"
#include "twinkle/server/replay/brief.h"
#include "twinkle/store/crc32c.h"

namespace twinkle::server::core {

Op op_of(const engine::Operation& operation, int64_t bytes, uint64_t sequence) {
  Op out{.sequence = sequence, .bytes = bytes};
  out.steps = std::holds_alternative<engine::Step>(operation);
  out.accumulates = out.steps || std::holds_alternative<engine::ForwardBackward>(operation);
  out.publishes = std::holds_alternative<engine::Publish>(operation);
  out.saves = std::holds_alternative<engine::Save>(operation);
  out.samples = std::holds_alternative<engine::Sample>(operation);
  if (const auto* load = std::get_if<engine::Load>(&operation)) out.reads = load->directory;
  // A Save changes folders alone.
  out.changes_engine =
      !out.samples && !out.saves && !std::holds_alternative<engine::Forward>(operation);
  out.used = used_by(operation);
  return out;
}

Op Domain::op_of(const Submit& submit, uint64_t sequence) {
  return core::op_of(engine::from_bytes(submit.operation), std::ssize(submit.operation), sequence);
}

std::pair<std::string, int64_t> parse_request_id(const std::string& id) {
  const size_t colon = id.rfind(':');
  if (colon == std::string::npos) return {};
  int64_t number = 0;
  std::from_chars(id.data() + colon + 1, id.data() + id.size(), number);
  return {id.substr(0, colon), number};
}

int64_t first_missing(const Run& run) {
  int64_t out = run.next;
  for (auto it = run.work.find(out); it != run.work.end() && it->first == out; ++it) ++out;
  return out;
}

Run& Domain::run_of(const std::string& id) {
  Run* const found = find(runs_, id);
  require(found, Code::kInvalid, "server: the journal names the run '", id,
          "', which its records did not make; restore a backup");
  return *found;
}

void Domain::apply(const Opened& record, uint64_t) {
  std::erase(starts_, record);
  starts_.push_back(record);
  for (auto& [id, run] : runs_)
    if (run.is_made) run.lost.clear();  // its files may have been put back
}

void Domain::apply(const OpenSession& record, uint64_t) {
  sessions_[record.session.id] = record.session;
  ++num_sessions_[record.session.owner];
}

void Domain::apply(const FinishSession& record, uint64_t) {
  Session* const session = find(sessions_, record.session);
  if (!session) return;
  session->finished = true;
  effects_.closed.push_back(session->id);
  for (const auto& [number, id] : session->runs)
    if (Run* const run = find(runs_, id)) finish(*run);
}

void Domain::apply(const FinishRun& record, uint64_t) {
  Run* const run = find(runs_, record.run);
  if (run && !run->finished) finish(*run);
}

// Requests that wait for a number that did not come fail.
void Domain::finish(Run& run) {
  run.finished = true;
  const int64_t missing = first_missing(run);
  const std::string why = "server: the session has ended, and seq_id " + std::to_string(missing) +
                          ", for which this request waited, did not come";
  for (auto it = run.work.upper_bound(missing); it != run.work.end();) {
    ops_.erase(it->second.sequence);
    end(request_id(run.id, it->first), 0, why);
    it = run.work.erase(it);
  }
  effects_.finished.push_back(run.id);
}

void Domain::apply(const CreateRun& record, uint64_t sequence) {
  const std::string& id = record.run.id;
  if (Session* const session = find(sessions_, record.run.session))
    session->runs[record.number] = id;
  runs_[id] = record.run;
  open({.id = request_id(id, 0),
        .owner = record.run.owner,
        .key_id = record.run.key_id,
        .sequence = sequence,
        .note = record.note});
  effects_.created.push_back(id);
}

void Domain::apply(const Submit& record, uint64_t sequence, Op op) {
  Run& run = run_of(record.run);
  op.sequence = sequence;
  op.saves_as = record.saves;
  op.sampler = record.sampler;
  if (op.saves) run.saved.push_back(op.saves_as.path.substr(run.id.size() + 1));
  run.last_ms = record.time_ms;
  open({.id = request_id(run.id, record.seq_id),
        .owner = run.owner,
        .key_id = record.key_id,
        .sequence = sequence,
        .bytes = op.bytes,
        .note = record.note});
  ops_[sequence] = std::move(op);
  run.work[record.seq_id] = {.sequence = sequence};
  go_on(run);
}

void Domain::apply(const Fail& record, uint64_t sequence) {
  Run& run = run_of(record.run);
  run.last_ms = record.time_ms;
  const std::string id = request_id(run.id, record.seq_id);
  open({.id = id, .owner = run.owner, .key_id = record.key_id, .sequence = sequence});
  end(id, 0, record.why);
  run.work[record.seq_id] = {.why = brief(record.why), .breaks_window = record.breaks_window};
  go_on(run);
}

void Domain::apply(const OpenSampler& record, uint64_t) {
  if (Session* const session = find(sessions_, record.sampler.session))
    session->samplers[record.number] = record.sampler.id;
  add(record.sampler);
}

void Domain::add(Sampler sampler) {
  ++num_samplers_[sampler.owner];
  const std::string id = sampler.id;
  samplers_[id] = std::move(sampler);
}

void Domain::apply(const Sample& record, uint64_t sequence) {
  Sampler* const sampler = find(samplers_, record.sampler);
  require(sampler, Code::kInvalid, "server: the journal names the sampler '", record.sampler,
          "', which its records did not make; restore a backup");
  NumberSet came(sampler->came);
  came.insert(record.seq_id);
  sampler->came = came.ranges();
  ops_[sequence] =
      core::op_of(engine::from_bytes(record.operation), std::ssize(record.operation), sequence);
  open({.id = request_id(sampler->id, record.seq_id),
        .owner = sampler->owner,
        .key_id = record.key_id,
        .sequence = sequence,
        .bytes = std::ssize(record.operation),
        .note = record.note});
}

void Domain::apply(const Ended& record, uint64_t sequence) {
  const Future* const future = find(futures_, record.id);
  if (!future) return;  // its run is deleted
  usage_.add(future->owner, future->key_id, record.id, record.used);
  const uint64_t begun = future->sequence;
  end(record.id, sequence, "");
  const auto [of, seq_id] = parse_request_id(record.id);
  if (Run* const run = find(runs_, of)) return end_work(*run, seq_id, record);
  ops_.erase(begun);  // a Sample's
}

void Domain::end_work(Run& run, int64_t seq_id, const Ended& ended) {
  const bool failed = !ended.error.empty();
  if (seq_id == 0) {
    run.is_made = !failed;
    if (failed) run.lost = ended.error;
    return go_on(run);
  }
  const auto found = run.work.find(seq_id);
  if (found == run.work.end()) return;
  Work& work = found->second;
  const Op op = ops_.at(work.sequence);
  if (failed && op.accumulates && run.broken.empty() && !work.drops)
    run.broken = brief("seq_id " + std::to_string(seq_id) + ": " + ended.error);
  if (!failed && op.saves) {
    Checkpoint made = op.saves_as;
    made.bytes = ended.bytes;
    effects_.kept.push_back(made.path);
    const Checkpoint* const before = checkpoint(made.path);
    if (before && before->folder != made.folder) removing_.insert(before->folder);
    checkpoints_[made.path] = std::move(made);
  }
  if (!failed && op.publishes)
    add({.id = op.sampler,
         .owner = run.owner,
         .base_model = run.base_model,
         .key_id = run.key_id,
         .session = run.session,
         .run = run.id,
         .version = ++run.num_published});
  // A step that dropped its window has failed, and has changed the engine all the same.
  if (op.changes_engine && (!failed || work.drops)) {
    run.computed += ended.used.seconds;
    work.state = Work::kEnded;
    work.digest = store::crc32c(ended.result);
  } else {
    ops_.erase(work.sequence);
    run.work.erase(found);
  }
  go_on(run);
}

// Starts what is next, up to an optim_step whose window has not ended: what may still break it
// runs.
void Domain::go_on(Run& run) {
  const auto is_window_open = [&] {
    return (!run.is_made && run.lost.empty()) ||
           std::ranges::any_of(run.work, [this](const auto& at) {
             return at.second.state == Work::kStarted && ops_.at(at.second.sequence).accumulates;
           });
  };
  for (auto it = run.work.find(run.next); it != run.work.end(); it = run.work.find(run.next)) {
    Work& work = it->second;
    if (work.sequence == 0) {
      if (work.breaks_window && run.broken.empty())
        run.broken = "seq_id " + std::to_string(it->first) + ": " + work.why;
      run.work.erase(it);
      ++run.next;
      continue;
    }
    const Op& op = ops_.at(work.sequence);
    if (op.steps) {
      if (is_window_open()) return;
      work.why = std::exchange(run.broken, {});
      work.drops = !work.why.empty();
    }
    work.state = Work::kStarted;
    effects_.started.emplace_back(run.id, it->first);
    ++run.next;
  }
}

void Domain::apply(const Read& record, uint64_t) {
  Future* const future = find(futures_, record.id);
  if (future && future->read_ms == 0) future->read_ms = record.time_ms;
}

void Domain::apply(const Snapshotted& record, uint64_t) {
  Run* const run = find(runs_, record.run);
  if (!run) return;  // it was deleted meanwhile
  const std::string before = std::exchange(run->snapshot, record.snapshot).folder;
  if (!before.empty() && before != record.snapshot.folder) removing_.insert("snapshots/" + before);
  run->computed = 0;
  for (auto it = run->work.begin(); it != run->work.end() && it->first <= record.snapshot.seq_id;) {
    if (it->second.state != Work::kEnded) {
      ++it;
      continue;
    }
    ops_.erase(it->second.sequence);
    it = run->work.erase(it);
  }
}

void Domain::apply(const Lost& record, uint64_t) {
  if (Run* const run = find(runs_, record.run)) run->lost = record.why;
}

void Domain::apply(const KeepCheckpoint& record, uint64_t) {
  if (Checkpoint* const of = find(checkpoints_, record.path)) {
    of->is_public = record.is_public;
    of->expires_ms = record.expires_ms;
    effects_.kept.push_back(record.path);
  }
}

void Domain::apply(const DeleteCheckpoint& record, uint64_t) {
  const auto found = checkpoints_.find(record.path);
  if (found == checkpoints_.end()) return;
  removing_.insert(found->second.folder);
  checkpoints_.erase(found);
}

void Domain::apply(const DeleteRun& record, uint64_t) {
  const auto found = runs_.find(record.run);
  if (found == runs_.end()) return;
  const std::string id = found->first;
  for (const auto& [seq_id, work] : found->second.work) ops_.erase(work.sequence);
  if (!found->second.snapshot.folder.empty()) removing_.insert("snapshots/" + id);
  std::erase_if(checkpoints_, [&](const auto& at) {
    if (at.second.run != id) return false;
    removing_.insert(at.second.folder);
    return true;
  });
  std::erase_if(samplers_, [&](const auto& at) {
    if (at.second.run != id) return false;
    --num_samplers_[at.second.owner];
    return true;
  });
  runs_.erase(found);
  for (auto it = futures_.lower_bound(id + ":"); it != futures_.end();) {
    if (!it->first.starts_with(id + ":")) break;
    end(it->first, 0, "server: the run '" + id + "' was deleted");
    it = std::next(it);
  }
  effects_.deleted.push_back(id);
}

void Domain::open(Future future) {
  future.number = ++num_futures_;
  ++num_open_;
  Open& of = open_of_[future.owner];
  ++of.num;
  of.bytes += future.bytes;
  const std::string id = future.id;
  futures_[id] = std::move(future);
}

void Domain::end(const std::string& id, uint64_t ended, const std::string& error) {
  Future* const future = find(futures_, id);
  if (!future || future->is_ended) return;
  future->is_ended = true;
  future->ended = ended;
  future->error = error;
  --num_open_;
  const auto of = open_of_.find(future->owner);
  of->second.bytes -= future->bytes;
  if (--of->second.num == 0) open_of_.erase(of);
  effects_.ended.push_back(id);
}

void Domain::forget(const std::string& id) {
  const Future* const future = find(futures_, id);
  if (future && future->is_ended) futures_.erase(id);
}

bool Domain::is_needed(const std::string& folder) const {
  return std::ranges::any_of(runs_,
                             [&](const auto& at) {
                               const Run& run = at.second;
                               return run.lost.empty() && run.snapshot.folder.empty() &&
                                      run.origin.folder == folder;
                             }) ||
         std::ranges::any_of(ops_, [&](const auto& op) { return op.second.reads == folder; });
}

std::vector<std::string> Domain::removable() const {
  std::vector<std::string> out;
  for (const std::string& folder : removing_)
    if (!is_needed(folder)) out.push_back(folder);
  return out;
}

int64_t Domain::num_disk_bytes(const std::string& owner) const {
  int64_t out = 0;
  for (const auto& [id, run] : runs_)
    if (run.owner == owner) out += run.snapshot.bytes;
  for (const auto& [path, checkpoint] : checkpoints_)
    if (checkpoint.owner == owner) out += checkpoint.bytes;
  return out;
}

int64_t Domain::num_adapters(const std::string& owner) const {
  int64_t out = std::ranges::count_if(checkpoints_, [&](const auto& at) {
    return at.second.owner == owner && at.first.find("/sampler_weights/") != std::string::npos;
  });
  for (const auto& [id, run] : runs_)
    if (run.owner == owner) out += run.num_published;
  return out;
}

namespace {

template <class T>
std::vector<T> values_of(const std::map<std::string, T>& all) {
  std::vector<T> out;
  out.reserve(all.size());
  for (const auto& [id, value] : all) out.push_back(value);
  return out;
}

}  // namespace

State Domain::state(uint64_t sequence, int64_t time_ms) const {
  return {.sequence = sequence,
          .time_ms = time_ms,
          .starts = starts_,
          .sessions = values_of(sessions_),
          .runs = values_of(runs_),
          .samplers = values_of(samplers_),
          .checkpoints = values_of(checkpoints_),
          .futures = values_of(futures_),
          .num_futures = num_futures_,
          .usage = usage_.lines(),
          .removing = {removing_.begin(), removing_.end()}};
}

std::set<uint64_t> Domain::carried(const State& state) {
  std::set<uint64_t> out;
  for (const Run& run : state.runs)
    for (const auto& [seq_id, work] : run.work) out.insert(work.sequence);
  for (const Future& future : state.futures)
    out.insert(future.is_ended ? future.ended : future.sequence);
  out.erase(0);
  return out;
}

void Domain::apply(const State& record, uint64_t) {
  starts_ = record.starts;
  for (const Session& session : record.sessions) apply(OpenSession{session}, 0);
  for (const Run& run : record.runs) runs_[run.id] = run;
  for (const Sampler& sampler : record.samplers) add(sampler);
  for (const Checkpoint& checkpoint : record.checkpoints)
    checkpoints_[checkpoint.path] = checkpoint;
  for (const Future& future : record.futures) {
    futures_[future.id] = future;
    if (future.is_ended) continue;
    ++num_open_;
    Open& of = open_of_[future.owner];
    ++of.num;
    of.bytes += future.bytes;
  }
  num_futures_ = record.num_futures;
  usage_.restore(record.usage);
  removing_ = {record.removing.begin(), record.removing.end()};
}

void Domain::replay(const Record& record, uint64_t sequence, bool is_carried) {
  if (is_carried) return carry(record, sequence);
  std::visit([&](const auto& r) { apply(r, sequence); }, record);
  take_effects();
}

void Domain::carry(const Record& record, uint64_t sequence) {
  if (const auto* submit = std::get_if<Submit>(&record)) {
    Op& op = ops_[sequence] = op_of(*submit, sequence);
    op.saves_as = submit->saves;
    op.sampler = submit->sampler;
  }
  if (const auto* sample = std::get_if<Sample>(&record))
    ops_[sequence] =
        core::op_of(engine::from_bytes(sample->operation), std::ssize(sample->operation), sequence);
}

}  // namespace twinkle::server::core
