#include "twinkle/serving/core/core.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "twinkle/base/fault/fault.h"
#include "twinkle/server/history/number_set.h"
#include "twinkle/serving/core/quotas.h"
#include "twinkle/serving/domain/clock.h"
#include "twinkle/serving/log/backup.h"
#include "twinkle/store/keys/keys.h"

namespace twinkle::server::core {
namespace {

// The answer of a run that is lost: by a fault of this server's, unless it was never made.
engine::Outcome lost(const Run& run) {
  const Code code = run.is_made ? Code::kInternal : Code::kInvalid;
  return {.error = std::make_exception_ptr(Error(code, run.lost))};
}

}  // namespace

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
}

std::string new_id() { return store::random_hex(16); }

Core::Core(Backend& backend, Loop& loop, std::filesystem::path state, const CoreOptions& options)
    : backend_(backend),
      loop_(loop),
      state_(std::move(state)),
      options_(options),
      paths_(state_),
      log_(loop),
      futures_(options.futures, loop, log_, domain_),
      queues_(options.queues, backend, {loop, reads_}, log_, state_,
              [this](const std::string& owner) { return quota_of(owner); }),
      adapters_(backend, loop, reads_, state_) {}

int64_t Core::open(const Opened& opened, bool accept_other_arithmetic) {
  const int64_t num_records =
      log_.open(state_ / kJournal, options_.journal,
                [this](const Record& record, uint64_t sequence, bool is_carried) {
                  domain_.replay(record, sequence, is_carried);
                });
  require_same(state_, domain_.starts(), opened, accept_other_arithmetic);
  require_whole(state_, domain_);
  remove_leftovers();
  opened_ = log_.append(opened);
  log_.wait_synced(opened_);  // a start that could not keep anything ends here
  domain_.apply(opened, opened_);
  loop_.post([this] { recover(); });
  return num_records;
}

void Core::close() {
  if (std::exchange(closing_, true)) return;
  disk_.close();  // its jobs tell the loop, which may end before this
  reads_.close();
  log_.close();
}

void Core::require_writable() const {
  require(log_.trouble().empty(), Code::kBusy,
          "server: the disk refuses what is to be journalled; come again");
}

// Has done all that a record made possible.
void Core::follow(uint64_t sequence, std::optional<engine::Operation> fresh) {
  const Domain::Effects effects = domain_.take_effects();  // ends among them follow on their own
  for (const std::string& run : effects.created) tasks_.start(make_run(run, false));
  for (const auto& [run, seq_id] : effects.started) {
    const Run& of = *domain_.run(run);
    const bool is_fresh = of.work.at(seq_id).sequence == sequence;
    tasks_.start(carry_out(run, seq_id, is_fresh ? std::move(fresh) : std::nullopt, false));
  }
  for (const std::string& future : effects.ended) {
    const Future* const of = domain_.future(future);
    if (of && of->ended == 0) tasks_.start(tell(future, sequence));
  }
  for (const std::string& path : effects.kept) keep(path);
  for (const std::string& run : effects.finished) tasks_.start(save(run));
  for (const std::string& session : effects.closed)
    for (const auto& [id, queued] : samples_)
      if (id.starts_with(session + ":")) queues_.cancel(*queued);
  for (const std::string& run : effects.deleted) {
    for (const auto& [id, queued] : samples_)
      if (queued->tenant == run) queues_.cancel(*queued);
    live_.erase(run);
    try {
      backend_.submit(backend_.check(engine::Delete{run}), [](const engine::Outcome&) {});
    } catch (const Error& e) {
      on_trouble("the run '" + run + "', which was deleted, stays in memory: " + e.what());
    }
  }
  if (domain_.removable().size() > removing_.size()) remove_folders();
  if (log_.bytes() - bytes_in_state_ >= options_.saving.journal_bytes && !is_compacting_)
    tasks_.start(compact());
}

Task<> Core::tell(std::string future, uint64_t sequence) {
  for (;;) {
    try {
      co_await log_.written(sequence);
      break;
    } catch (const Error&) {
      // The disk refuses: nobody is answered before it takes the record.
    }
    co_await pause(loop_, std::chrono::milliseconds(50));
  }
  fault("after outcome");
  futures_.complete(future);
}

// The engine has done it, and nobody may be answered before the record is written.
void Core::end(Ended ended) {
  if (closing_) return;
  fault("before outcome");
  const auto result = std::make_shared<const Ended>(std::move(ended));
  const uint64_t sequence = log_.append(*result);
  const Future* const future = domain_.future(result->id);
  if (future) queues_.spend(future->owner, result->used.generated, result->used.seconds);
  domain_.apply(*result, sequence);
  futures_.keep(result->id, result);
  tasks_.start(tell(result->id, sequence));
  follow(sequence);
}

// Clients know nothing of the state's files, and it is no fault of theirs if one cannot be used.
void Core::describe(Ended& ended, const std::exception_ptr& error) {
  const std::string text = text_of(error);
  const auto of_file = paths_.told(text);
  Code code = Code::kInternal;
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    code = e.code;
  } catch (const std::exception&) {
    code = Code::kInternal;
  }
  ended.is_users = !of_file && code != Code::kInternal && code != Code::kBusy;
  if (!ended.is_users) on_trouble(ended.id + " failed: " + text);
  ended.error = of_file ? of_file->text : text;
  if (of_file && code == Code::kNotFound)
    ended.error = "server: " + of_file->first +
                  " cannot be read: its folder, or a file in it, is gone; the operator can put it "
                  "back";
}

Ended Core::ended_of(const std::string& id, const Used& used, const engine::Outcome& outcome) {
  Ended out{.id = id};
  // An operation that failed before it began, as a sample that was cancelled while it was held, has
  // used nothing.
  out.used = outcome.error && outcome.seconds == 0 ? Used{} : used;
  out.used.generated = outcome.error ? outcome.generated : generated_in(outcome.result);
  out.used.seconds = outcome.seconds;
  if (outcome.error)
    describe(out, outcome.error);
  else
    out.result = engine::to_bytes(outcome.result);
  return out;
}

// ---- Runs.

engine::Create Core::create_of(const Run& run, const std::string& folder) const {
  const store::Quota quota = quota_of(run.owner, run.key_id);
  engine::Create out{.tenant = run.id};
  if (folder.empty()) {
    out.lora_json = run.origin.lora_json;
    out.seed = run.origin.seed;
  } else {
    out.directory = (state_ / folder).string();
  }
  out.weight = quota.weight;
  out.priority = quota.priority;
  return out;
}

Task<std::string> Core::create_run(CreateRun create) {
  const Run run = create.run;
  futures_.require_room(run.owner, 0, quota_of(run.owner).max_disk);
  require_run(*this, run);
  backend_.validate(create_of(run, run.origin.folder));
  co_await commit(std::move(create));
  co_return request_id(run.id, 0);
}

// Both enter the run's line before this returns.
Task<engine::Outcome> Core::begin_run(std::string id, std::string folder, bool with_optimizer,
                                      bool exact, bool is_again) {
  const Run& run = *domain_.run(id);
  const auto queue = [&](engine::Operation operation) {
    const auto queued = std::make_shared<Queued>();
    queued->tenant = id;
    queued->owner = run.owner;
    queued->op = op_of(operation, run.snapshot.bytes, 0);  // its files are read into memory
    queued->op.reads = folder;
    queued->operation = std::move(operation);
    queued->is_rated = false;
    queued->is_again = is_again;
    return queues_.run(queued);
  };
  Task<engine::Outcome> created = queue(create_of(run, folder));
  if (!with_optimizer) co_return co_await created;
  Task<engine::Outcome> loaded = queue(engine::Load{
      .tenant = id, .directory = (state_ / folder).string(), .optimizer = true, .exact = exact});
  std::exception_ptr error;
  {
    const engine::Outcome first = co_await created;  // while it lives it takes the tenant's room
    error = first.error;
  }
  engine::Outcome then = co_await loaded;
  if (error) then.error = error;
  co_return then;
}

Task<> Core::make_run(std::string id, bool is_again) {
  const Origin origin = domain_.run(id)->origin;
  const engine::Outcome outcome =
      co_await begin_run(id, origin.folder, origin.optimizer, false, is_again);
  end(ended_of(request_id(id, 0), {}, outcome));
  const Run* const run = domain_.run(id);
  if (run && run->is_made && !origin.folder.empty()) tasks_.start(save(id));
}

const Run& Core::require_takes(const Numbered& numbered) const {
  const int64_t seq_id = numbered.seq_id;
  const Run* const run = domain_.run(numbered.run);
  require(run, Code::kNotFound, "server: model_id '", numbered.run, "' is not known");
  require(seq_id >= 1, Code::kInvalid, "server: seq_id is ", seq_id, ", it must be at least 1");
  if (has_come(*run, seq_id)) return *run;
  require(!run->finished, Code::kInvalid, "server: the session of the run '", run->id,
          "' has finished; make another");
  const int64_t missing = first_missing(*run);
  require(seq_id - missing <= kMaxAhead, Code::kInvalid, "server: seq_id is ", seq_id, ", but ",
          missing, " of '", run->id, "' has not come; at most ", kMaxAhead,
          " numbers may be ahead of it");
  return *run;
}

// A number that later ones wait for is taken beyond the limit: they keep their room until it has
// come.
Task<> Core::commit_submit(Numbered numbered, int64_t now, engine::Operation operation) {
  const Run& run = *domain_.run(numbered.run);
  const auto waits = [](const auto& at) { return at.second.sequence > 0; };  // or it has failed
  const bool is_waited_for =
      numbered.seq_id == first_missing(run) &&
      std::any_of(run.work.upper_bound(numbered.seq_id), run.work.end(), waits);
  if (!is_waited_for)
    futures_.require_room(run.owner, engine::num_bytes(operation), quota_of(run.owner).max_disk);
  require_writable();
  const Submit submit{.run = numbered.run,
                      .seq_id = numbered.seq_id,
                      .time_ms = now,
                      .key_id = std::move(numbered.key_id),
                      .operation = engine::to_bytes(operation),
                      .note = std::move(numbered.note),
                      .saves = std::move(numbered.saves),
                      .sampler = std::move(numbered.sampler)};
  Op op = op_of(operation, std::ssize(submit.operation), 0);
  fault("before apply");
  const uint64_t sequence = record(submit, std::move(operation), std::move(op));
  fault("after apply");
  if (first_missing(*domain_.run(numbered.run)) < numbered.seq_id)
    tasks_.start(give_up_missing(numbered.run));
  co_await log_.written(sequence);
}

std::shared_ptr<Queued> Core::queued_of(const Run& run, int64_t seq_id, bool is_again) {
  const Work& work = run.work.at(seq_id);
  const auto out = std::make_shared<Queued>();
  out->id = request_id(run.id, seq_id);
  out->tenant = run.id;
  out->owner = run.owner;
  out->op = *domain_.op(work.sequence);
  // An operation that was accepted before this start is done whatever its limits are.
  out->is_again = is_again || work.sequence < opened_;
  if (work.drops) {
    out->operation = engine::ZeroGrad{run.id};
    out->op.sequence = 0;  // the journal has a Step
  }
  return out;
}

Task<> Core::carry_out(std::string id, int64_t seq_id, std::optional<engine::Operation> fresh,
                       bool is_again) {
  const Run& run = *domain_.run(id);
  const std::shared_ptr<Queued> queued = queued_of(run, seq_id, is_again);
  const std::string why = run.work.at(seq_id).why;
  const bool drops = run.work.at(seq_id).drops;
  if (!queued->operation && fresh) queued->operation = std::move(fresh);
  queued->on_given = [this, id, seq_id] {
    Live& live = live_[id];
    live.given = std::max(live.given, seq_id);
  };
  engine::Outcome outcome;
  if (run.lost.empty()) outcome = co_await queues_.run(queued);
  if (!domain_.run(id)) co_return;  // it was deleted
  if (!run.lost.empty() && (outcome.error || queued->engine_id == 0)) outcome = lost(run);
  Ended ended = ended_of(queued->id, queued->op.used, outcome);
  if (drops && ended.error.empty()) {
    ended.error =
        "optim_step: a request of its window failed, and what the others have "
        "accumulated was dropped; send the whole batch again. The failure: " +
        why;
    ended.is_users = true;
  }
  if (queued->op.saves && ended.error.empty()) {
    const std::string folder = queued->op.saves_as.folder;
    const auto bytes = std::make_shared<int64_t>(0);
    const auto measure = [path = state_ / folder, bytes] { *bytes = bytes_below(path); };
    co_await on(disk_, loop_, measure);
    ended.bytes = *bytes;
  }
  if (!domain_.run(id)) co_return;
  end(std::move(ended));
  changed(id);
}

void Core::lose(const std::string& run, const std::string& why) {
  on_trouble("the run '" + run + "' is lost: " + why);
  record(Lost{run, why});
}

// A number that does not come, or whose request could not be read, holds up its run: after a while
// it fails, and what waits for it goes on.
Task<> Core::give_up_missing(std::string id) {
  constexpr std::chrono::minutes kGivenUpAfter{6};
  if (!missing_.insert(id).second) co_return;
  const auto missing = [&]() -> int64_t {  // 0: nothing waits for one
    const Run* const run = domain_.run(id);
    if (!run) return 0;
    const int64_t out = first_missing(*run);
    return run->work.upper_bound(out) == run->work.end() ? 0 : out;
  };
  while (const int64_t number = missing()) {
    co_await pause(loop_, kGivenUpAfter);
    if (missing() != number) continue;
    Fail failure{.run = id, .seq_id = number, .time_ms = milliseconds_since_1970()};
    failure.why =
        "server: it did not come for " + std::to_string(kGivenUpAfter.count()) + " minutes";
    failure.breaks_window = true;
    try {
      co_await commit(std::move(failure));
    } catch (const Error&) {
      // The disk refuses: later.
    }
  }
  missing_.erase(id);
}

// ---- Samples.

Task<Core::Place> Core::place_of(Sampler sampler) {
  Place out{.tenant = sampler.run, .version = sampler.version};
  const Run* const run = domain_.run(sampler.run);
  std::string folder = sampler.folder;
  if (run) {
    co_await recovered(sampler.run);
    const auto& versions = domain_.run(sampler.run)->snapshot.versions;
    if (sampler.version > live_[sampler.run].released) co_return out;
    folder = "snapshots/" + versions.at(static_cast<size_t>(sampler.version - 1));
  } else {
    require(sampler.run.empty(), Code::kNotFound, "server: the run '", sampler.run,
            "', whose version this sampler samples, was deleted");
  }
  const Checkpoint* const of = domain_.checkpoint(sampler.checkpoint);
  require(sampler.checkpoint.empty() || (of && of->folder == sampler.folder), Code::kNotFound,
          "server: the checkpoint ", sampler.checkpoint, of ? " was overwritten" : " was deleted",
          ": make another sampler");
  const store::Quota quota = quota_of(sampler.owner, sampler.key_id);
  out = {.tenant = folder.empty() ? Adapters::of_base(sampler.owner) : Adapters::of_folder(folder)};
  engine::Create create{.tenant = out.tenant, .directory = folder, .frozen = folder.empty()};
  create.weight = quota.weight;
  create.priority = quota.priority;
  co_await adapters_.ready(std::move(create), sampler.owner);
  co_return out;
}

Task<> Core::prepare(Sampler sampler) { co_await place_of(std::move(sampler)); }

Task<std::string> Core::sample(Prompted prompted, engine::Sample sample) {
  const auto known = [&]() -> const Sampler& {
    const Sampler* const found = domain_.sampler(prompted.sampler);
    require(found, Code::kNotFound, "server: sampling_session_id '", prompted.sampler,
            "' is not known");
    return *found;
  };
  const std::string id = request_id(prompted.sampler, prompted.seq_id);
  const auto came = [&] { return NumberSet(known().came).contains(prompted.seq_id); };
  if (!came()) {
    const Place place = co_await place_of(known());
    sample.tenant = place.tenant;
    sample.version = place.version;
  }
  if (came()) {  // perhaps meanwhile
    co_await log_.written(log_.sequence());
    co_return id;
  }
  const Sampler sampler = known();
  backend_.validate(sample);
  const auto queued = std::make_shared<Queued>();
  queued->id = id;
  queued->tenant = sample.tenant;
  queued->owner = sampler.owner;
  queued->version = sample.version;
  queued->operation = sample;
  queued->op = op_of(*queued->operation, 0, 0);
  queues_.require_room(*queued);
  futures_.require_room(sampler.owner, engine::num_bytes(*queued->operation),
                        quota_of(sampler.owner).max_disk);
  require_writable();
  sample.tenant.clear();  // where it is sampled is known when it is
  sample.version = 0;
  const uint64_t sequence =
      record(Sample{.sampler = sampler.id,
                    .seq_id = prompted.seq_id,
                    .key_id = prompted.key_id,
                    .operation = engine::to_bytes(engine::Operation(std::move(sample))),
                    .note = std::move(prompted.note)});
  [&]() noexcept {
    queued->op = *domain_.op(sequence);
    tasks_.start(carry_out_sample(id, sampler, queued));
  }();
  co_await log_.written(sequence);
  co_return id;
}

// `queued`: null where it is still to be found where it is sampled.
Task<> Core::carry_out_sample(std::string future, Sampler sampler, std::shared_ptr<Queued> queued) {
  engine::Outcome outcome;
  Used used;
  try {
    if (!queued) {
      const Future* const of = domain_.future(future);
      queued = std::make_shared<Queued>();
      queued->id = future;
      queued->owner = of->owner;
      queued->op = *domain_.op(of->sequence);
      queued->is_again = true;
      samples_[future] = queued;
      for (;;) {
        try {
          const Place place = co_await place_of(sampler);
          queued->tenant = place.tenant;
          queued->version = place.version;
          break;
        } catch (const Error& e) {
          if (e.code != Code::kBusy) throw;
        }
        co_await pause(loop_, options_.queues.again);
      }
    }
    samples_[future] = queued;
    used = queued->op.used;
    outcome = co_await queues_.run(queued);
  } catch (const Error&) {
    outcome.error = std::current_exception();
  }
  samples_.erase(future);
  // The cause, where what it samples is not there.
  const Run* const run = domain_.run(sampler.run);
  if (outcome.error && run && queued->tenant == run->id && !run->lost.empty())
    outcome = lost(*run);
  else if (const std::exception_ptr why = adapters_.failure(queued->tenant); outcome.error && why)
    outcome.error = why;
  end(ended_of(future, used, outcome));
}

// An optim_step comes to the queues behind the end of its window.
std::string Core::held_by(const std::string& future) const {
  if (std::string why = queues_.why_held(future); !why.empty()) return why;
  const auto [of, seq_id] = parse_request_id(future);
  const Run* const run = domain_.run(of);
  const bool is_behind = run && run->next <= seq_id && first_missing(*run) > seq_id;
  return is_behind ? queues_.why_held(request_id(of, run->next - 1)) : "";
}

std::string Core::why_waits(const std::string& future) const {
  if (const std::string why = held_by(future); !why.empty()) return why;
  const auto [of, seq_id] = parse_request_id(future);
  const Run* const run = domain_.run(of);
  if (!run || run->next > seq_id) return "";
  const int64_t missing = first_missing(*run);
  if (missing >= seq_id) return "";
  return "seq_id " + std::to_string(seq_id) + " waits for seq_id " + std::to_string(missing) +
         ", which has not come";
}

}  // namespace twinkle::server::core
