#include "twinkle/engine/schedule/dispatcher.h"

#include <algorithm>
#include <utility>

namespace twinkle::engine {
namespace {

// The limit of operations of one tenant that run by themselves before a batch: enough to clip and
// step without missing one, and few enough not to hold up the others.
constexpr int kMaxRounds = 8;

int64_t num_sampled(const Result& result) {
  int64_t out = 0;
  const auto* sampled = std::get_if<SampleResult>(&result);
  if (!sampled) return out;
  for (const auto& samples : sampled->completions) {
    for (const Completion& c : samples) out += std::ssize(c.tokens);
  }
  return out;
}

// Sequences of a Sample, which the executor has not checked yet.
double num_sequences(const Operation& operation) {
  const auto& sample = std::get<Sample>(operation);
  double out = 0;
  for (size_t i = 0; i < sample.prompts.size(); ++i) {
    const size_t of = sample.params.size() == 1 ? 0 : i;
    const int64_t more = of < sample.params.size() ? sample.params[of].num_samples : 1;
    out += static_cast<double>(std::max<int64_t>(1, more));
  }
  return out;
}

// The exception that it threw, for a future; or null.
template <class F>
std::exception_ptr attempt(F&& run) {
  try {
    run();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

Dispatcher::Dispatcher(const DispatcherOptions& options, Executor& executor)
    : options_((check_options(options, "engine: "), options)),
      executor_(executor),
      held_(options.max_queued_bytes, options.max_queued_bytes_total),
      cancelled_error_(std::make_exception_ptr(Error(Code::kConflict, kCancelled))),
      closed_error_(std::make_exception_ptr(Error(Code::kBusy, "engine: closed"))),
      scheduler_(options.token_budget),
      time_share_(options.sampling_share),
      background_([this] { wake(); }),
      thread_([this] { loop(); }) {}

Dispatcher::~Dispatcher() { close(); }

void Dispatcher::close() {
  {
    const Lock lock(mutex_);
    if (closed_.exchange(true)) return;
    stop_ = true;
  }
  ready_.notify_all();
  thread_.join();
}

void Dispatcher::wake() {
  const Lock lock(mutex_);  // the thread waits, or has not looked yet
  ready_.notify_one();
}

// ---- cancelling, and what is told

bool Dispatcher::cancel(int64_t id) {
  Jobs::node_type queued;
  {
    const Lock lock(mutex_);
    const auto it = jobs_.find(id);
    if (it == jobs_.end() || it->second.state == Job::kFinal) return false;
    Job& job = it->second;
    if (job.state == Job::kQueued) {
      queued = extract(id);
    } else if (!job.cancelled) {
      cancelled_.push_back(id);
      job.cancelled = true;
      const auto unwanted = [this](const Work& w)
                                REQUIRES(mutex_) { return jobs_.at(w.id).cancelled; };
      if (!running_.empty() && std::ranges::all_of(running_, unwanted)) stop_ = true;
    }
  }
  fail(std::move(queued), cancelled_error_);
  ready_.notify_one();
  return true;
}

Stats Dispatcher::stats() const {
  const Lock lock(mutex_);
  Stats out = stats_;
  out.num_queued = num_queued_;
  out.max_queued_total = options_.max_queued_total;
  out.queued_bytes = held_.in_all();
  out.max_queued_bytes_total = options_.max_queued_bytes_total;
  for (const auto& [name, t] : tenants_)
    out.tenants[name] = {t.num_queued, scheduler_.num_tokens(name), t.num_sampled};
  return out;
}

// Empty: it has ended.
Jobs::node_type Dispatcher::extract(int64_t id) {
  Jobs::node_type job = jobs_.extract(id);
  if (!job) return job;
  scheduler_.remove(tenant_of(job.mapped().operation), id);
  --tenants_.at(tenant_of(job.mapped().operation)).num_submitted;
  if (job.mapped().state == Job::kSampling) end_sampling(job.mapped());
  count_out(tenant_of(job.mapped().operation));
  // The batch that waited is gone; the next one waits anew.
  if (gathers_until_ && !scheduler_.has_batch()) gathers_until_.reset();
  return job;
}

void Dispatcher::end_sampling(Job& job) {
  const double sequences = num_sequences(job.operation);
  --num_sampling_;
  num_sequences_ = num_sampling_ == 0 ? 0 : num_sequences_ - sequences;
  job.seconds += (sequence_seconds_ - job.sampled_from) * sequences;
}

void Dispatcher::count_out(const std::string& name) {
  --num_queued_;
  const auto tenant = tenants_.find(name);
  if (--tenant->second.num_queued == 0 && tenant->second.created_by == 0) tenants_.erase(tenant);
}

void Dispatcher::fail(Jobs::node_type node, const std::exception_ptr& error,
                      int64_t generated) const {
  if (!node) return;
  Job& job = node.mapped();
  job.hooks = {};
  job.prepared.reset();
  job.room->resize(0);
  job.on_done({.id = job.id,
               .error = job.cancelled ? cancelled_error_ : error,
               .seconds = job.seconds,
               .generated = generated});
}

// ---- the dispatcher's thread: what runs next

void Dispatcher::loop() {
  executor_.begin();
  for (bool more = true; more;) {
    // Memory ran out between operations: the newest fails, of those that have not begun if there
    // are any.
    if (const auto error = attempt([&] { more = turn(); })) drop(newest(Job::kQueued), error);
  }
  background_.stop();
  end(background_.take_ended());
  while (const int64_t id = newest(Job::kQueued)) drop(id, closed_error_);
}

// False: closed.
bool Dispatcher::turn() {
  std::optional<Turn> now = next_turn();
  if (!now) return false;
  end(std::move(now->ended));
  for (const int64_t id : now->cancelled) drop(id, cancelled_error_);
  if (!now->side) return true;
  const double begin = executor_.seconds();
  if (now->side == Side::kSampling)
    sample();
  else if (now->heads.empty())
    run_batch(*now);
  for (Job* head : now->heads) {
    if (closed_) break;
    if (const auto error = attempt([&] { run_head(*head); })) drop(head->id, error);
  }
  const double seconds = executor_.seconds() - begin;
  const Lock lock(mutex_);
  time_share_.ran(*now->side, seconds, now->contested);
  (now->side == Side::kTraining ? stats_.training_seconds : stats_.sampling_seconds) += seconds;
  return true;
}

// Waits for something to do. None: closed.
std::optional<Dispatcher::Turn> Dispatcher::next_turn() {
  Turn out;
  bool batch = false;
  Lock lock(mutex_);
  while (true) {
    if (closed_) return std::nullopt;
    out.ended = background_.take_ended();
    out.cancelled.swap(cancelled_);
    if (!out.ended.empty() || !out.cancelled.empty()) return out;
    out.heads = heads();
    const bool queued = scheduler_.has_batch(!draining_);
    batch = queued && !gathers();
    if (batch || !out.heads.empty() || num_sampling_ > 0) break;
    if (queued)
      lock.wait_for(ready_, *gathers_until_ - executor_.seconds());
    else
      lock.wait(ready_);
  }
  const bool training = batch || !out.heads.empty(), sampling = num_sampling_ > 0;
  out.contested = training && sampling;
  out.side = time_share_.next(training, sampling);
  if (out.side == Side::kSampling) {
    out.heads.clear();
    ++stats_.num_steps;
  } else if (out.heads.empty() || (batch && num_rounds_ == kMaxRounds)) {
    out.heads.clear();
    form_batch(out);
  } else {
    num_rounds_ = batch ? num_rounds_ + 1 : 0;
    for (Job* head : out.heads) begin(*head);
  }
  return out;
}

// Operations that run by themselves, each the next of its tenant.
std::vector<Job*> Dispatcher::heads() {
  std::vector<Job*> out;
  for (const int64_t id : scheduler_.heads()) out.push_back(&jobs_.at(id));
  // Samples that wait for memory keep their order, so that each gets its turn.
  int64_t promised = 0;
  // One that holds its tenant stays first.
  std::erase_if(out, [&](const Job* j) {
    if (j->state != Job::kQueued || executor_.waits(j->operation)) return true;
    const auto* sample = std::get_if<Sample>(&j->operation);
    const SampleRoom room = sample ? executor_.sample_room(*sample, promised) : SampleRoom();
    if (!room.is_needed) return false;
    if (!room.fits) promised = kNoLimit;
    promised += room.bytes;
    return !room.fits;
  });
  const auto changes_base = [this](const Job* j) { return executor_.changes_base(j->operation); };
  draining_ = std::ranges::any_of(out, changes_base);
  std::erase_if(out, [&](const Job* job) REQUIRES(mutex_) {
    if (std::holds_alternative<Sample>(job->operation)) return draining_;
    return changes_base(job) &&
           (num_sampling_ > 0 || scheduler_.others_have_begun(tenant_of(job->operation)));
  });
  return out;
}

void Dispatcher::begin(Job& head) {
  head.state = Job::kFinal;
  if (!std::holds_alternative<Sample>(head.operation)) return;
  const std::string& name = tenant_of(head.operation);
  head.state = Job::kSampling;
  head.share = scheduler_.share(name);
  head.sampled_from = sequence_seconds_;
  ++num_sampling_;
  num_sequences_ += num_sequences(head.operation);
  scheduler_.remove(name, head.id);  // its tenant's next operation need not wait for it
}

// True: the batch that could run waits for a tenant of the last one.
bool Dispatcher::gathers() {
  if (draining_ || options_.gather_ms == 0 || num_sampling_ > 0) return false;
  const bool missing = std::ranges::any_of(tenants_, [this](const auto& t) REQUIRES(mutex_) {
    return t.second.num_submitted == 0 && t.second.last_batch == stats_.num_batches;
  });
  if (!missing) return false;
  const double now = executor_.seconds();
  if (!gathers_until_) gathers_until_ = now + options_.gather_ms / 1000;
  return now < *gathers_until_;
}

// There is one. When memory runs out, nothing has left the scheduler.
void Dispatcher::form_batch(Turn& turn) {
  turn.batch.reserve(jobs_.size());
  turn.outcome.ended.reserve(jobs_.size());
  turn.outcome.rewound.reserve(jobs_.size());
  stats_.last_batches.reserve(kLastBatches);
  const std::vector<Slice> slices = scheduler_.next_batch(
      !draining_, {executor_.batch_room(),
                   [this](const std::string& tenant) { return executor_.batch_bytes(tenant); }});
  const int64_t number = ++stats_.num_batches;
  BatchStats counts;
  for (const Slice& slice : slices) {
    const Job& job = jobs_.at(slice.id);
    turn.batch.push_back({slice.id, &job.operation, slice.first, slice.last, slice.num_tokens});
    Tenant& tenant = tenants_.at(tenant_of(job.operation));
    if (std::exchange(tenant.last_batch, number) != number) tenant.num_in_batch = 0;
    counts.num_tenants += ++tenant.num_in_batch == 1;
    counts.num_tokens += slice.num_tokens;
  }
  // Gradients of operations that join can't be told apart any more.
  for (const Slice& slice : slices) {
    Job& job = jobs_.at(slice.id);
    const bool joined = tenants_.at(tenant_of(job.operation)).num_in_batch > 1;
    job.state = joined ? Job::kFinal : Job::kTraining;
  }
  if (stats_.last_batches.size() == kLastBatches)
    stats_.last_batches.erase(stats_.last_batches.begin());
  stats_.last_batches.push_back(counts);
  stats_.batches.num_tokens += counts.num_tokens;
  stats_.batches.num_tenants += counts.num_tenants;
  gathers_until_.reset();
  num_rounds_ = 0;
  running_ = turn.batch;
  stop_ = false;
}

void Dispatcher::run_head(Job& job) {
  if (const auto* sample = std::get_if<Sample>(&job.operation))
    return executor_.start(job.id, *sample, job.share, std::exchange(job.hooks, {}),
                           job.prepared.get());
  const std::string& name = tenant_of(job.operation);
  const double began = executor_.seconds();
  if (executor_.waits(job.operation)) {  // since one before it in this turn
    const Lock lock(mutex_);
    job.state = Job::kQueued;
    return;
  }
  if (FirstPart first = executor_.first_part(job.operation); first.rest) {
    job.seconds += executor_.seconds() - began;
    background_.add(job.id, std::move(first.rest));
    const Lock lock(mutex_);
    if (!first.holds_tenant) scheduler_.remove(name, job.id);
    return;
  }
  Result result = executor_.run(job.operation, job.prepared.get());
  job.seconds += executor_.seconds() - began;
  Jobs::node_type done;
  {
    // It has happened: nothing here takes memory, since both know its tenant, which has a job.
    const Lock lock(mutex_);
    Tenant& tenant = tenants_.at(name);
    if (const auto* create = std::get_if<Create>(&job.operation)) {
      scheduler_.set_share(name, {create->weight, create->priority});
      tenant.created_by = job.id;
    }
    if (std::holds_alternative<Delete>(job.operation)) {
      scheduler_.forget(name);
      tenant = {.num_queued = tenant.num_queued, .num_submitted = tenant.num_submitted};
    }
    done = extract(job.id);
  }
  succeed(std::move(done), std::move(result));
}

void Dispatcher::run_batch(Turn& turn) {
  const double began = executor_.seconds();
  const auto error = attempt([&] { executor_.run_batch(turn.batch, stop_, turn.outcome); });
  const double seconds = executor_.seconds() - began;
  {
    const Lock lock(mutex_);
    running_ = {};
    const auto tokens = static_cast<double>(stats_.last_batches.back().num_tokens);
    for (const Work& work : turn.batch)
      jobs_.at(work.id).seconds += seconds * static_cast<double>(work.num_tokens) / tokens;
    if (!error) {
      stats_.num_passes += turn.outcome.num_passes;
      for (const Rewound& r : turn.outcome.rewound) {
        Job& job = jobs_.at(r.id);
        job.state = Job::kTraining;
        scheduler_.rewind(tenant_of(job.operation), r.id, r.alone);
      }
    }
  }
  if (!error) return end(turn.outcome.ended);
  if (stop_) return;  // the next turn drops them, or the end of the loop
  for (auto work = turn.batch.rbegin(); work != turn.batch.rend(); ++work) drop(work->id, error);
}

void Dispatcher::sample() {
  std::vector<Ended> ended;
  const double began = executor_.seconds();
  const auto error = attempt([&] { ended = executor_.step(); });
  {
    const Lock lock(mutex_);
    sequence_seconds_ += (executor_.seconds() - began) / std::max(1.0, num_sequences_);
  }
  if (error) {
    // Most likely memory ran out: the newest fails, the others are tried again without it.
    const int64_t id = executor_.newest();
    return drop(id != 0 ? id : newest(Job::kSampling), error);
  }
  end(ended);
}

// ---- and how operations end

void Dispatcher::end(std::span<const Ended> ended) {
  for (const Ended& e : ended) {
    Jobs::node_type done;
    {
      const Lock lock(mutex_);
      if (!e.error && !jobs_.at(e.id).cancelled) done = extract(e.id);  // cancel() is too late
    }
    if (done)
      succeed(std::move(done), executor_.commit(e.id));
    else
      drop(e.id, e.error);
  }
}

void Dispatcher::end(Background::Jobs ended) {
  for (Background::Job& job : ended) {
    job.rest = {};  // its memory is free before anybody is notified
    if (job.error) {
      drop(job.id, job.error);
      continue;
    }
    Jobs::node_type done;
    {
      const Lock lock(mutex_);
      done = extract(job.id);
    }
    if (done) succeed(std::move(done), std::move(job.result));
  }
}

// The room that was reserved becomes what the result takes. An Inspect's was not known before: one
// that is larger than the limit alone counts as the limit, one that does not fit now fails, which
// takes nothing back.
void Dispatcher::succeed(Jobs::node_type node, Result result) {
  Job& job = node.mapped();
  const int64_t sampled = num_sampled(result);
  int64_t bytes = num_bytes(result);
  if (job.streams) bytes += sampled * static_cast<int64_t>(sizeof(TokenEvent));  // not read yet
  {
    const Lock lock(mutex_);
    // Its tenant may be gone, and another have its name.
    const auto it = tenants_.find(tenant_of(job.operation));
    if (it != tenants_.end() && it->second.created_by != 0 && it->second.created_by < job.id)
      it->second.num_sampled += sampled;
  }
  const auto error = attempt([&] { job.room->resize(std::min(bytes, held_.max())); });
  if (error && std::holds_alternative<InspectResult>(result)) return fail(std::move(node), error);
  job.operation = {};
  job.hooks = {};
  job.prepared.reset();
  job.on_done({.id = job.id,
               .result = std::move(result),
               .seconds = job.seconds,
               .room = std::move(job.room)});
}

// The newest in this state, or of all if none is; 0: there is none. Takes no memory.
int64_t Dispatcher::newest(Job::State state) const {
  const Lock lock(mutex_);
  if (jobs_.empty()) return 0;
  const auto found = std::find_if(jobs_.rbegin(), jobs_.rend(),
                                  [&](const auto& job) { return job.second.state == state; });
  return (found == jobs_.rend() ? jobs_.rbegin() : found)->first;
}

// Its tenant is as if it had never been. Nothing if it has ended. Executors take no memory to undo,
// so that they do not throw; if one did, the thread has to go on for the other tenants.
void Dispatcher::drop(int64_t id, const std::exception_ptr& error) {
  const int64_t generated = executor_.num_generated(id);
  (void)attempt([&] { executor_.undo(id); });
  Jobs::node_type dropped;
  {
    const Lock lock(mutex_);
    dropped = extract(id);
  }
  fail(std::move(dropped), error, generated);
}

}  // namespace twinkle::engine
