#include "twinkle/engine/schedule/dispatcher.h"

#include <algorithm>
#include <utility>

namespace twinkle::engine {
namespace {

// The limit of operations of one tenant that run by themselves before a batch: enough to clip and
// step without missing one, and few enough not to hold up the others.
constexpr int kHeadsInARow = 8;

std::vector<int64_t> tokens_of(const Operation& operation) {
  std::vector<int64_t> out;
  const auto add = [&](const std::vector<Example>& sequences) {
    for (const Example& s : sequences) out.push_back(std::ssize(s.input_ids));
  };
  if (const auto* f = std::get_if<Forward>(&operation)) add(f->sequences);
  if (const auto* b = std::get_if<ForwardBackward>(&operation)) add(b->sequences);
  return out;
}

int64_t num_sampled(const Result& result) {
  int64_t out = 0;
  const auto* sampled = std::get_if<SampleResult>(&result);
  if (!sampled) return out;
  for (const auto& samples : sampled->completions) {
    for (const Completion& c : samples) out += std::ssize(c.tokens);
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

void validate(const DispatcherOptions& o) {
  const auto at_least_one = [](const char* field, int64_t value) {
    require(value >= 1, Code::kInvalid, "engine: ", field, " is ", value,
            ", it must be at least 1");
  };
  at_least_one("token_budget", o.token_budget);
  at_least_one("max_queued", o.max_queued);
  at_least_one("max_queued_total", o.max_queued_total);
  at_least_one("max_queued_bytes", o.max_queued_bytes);
  at_least_one("max_queued_bytes_total", o.max_queued_bytes_total);
  require(o.sampling_share > 0 && o.sampling_share < 1, Code::kInvalid,
          "engine: sampling_share is ", o.sampling_share, ", it must be above 0 and below 1");
  require(o.gather_ms >= 0 && o.gather_ms <= 1000, Code::kInvalid, "engine: gather_ms is ",
          o.gather_ms, ", it must be from 0 to 1000");
}

Dispatcher::Dispatcher(const DispatcherOptions& options, Executor& executor)
    : options_((validate(options), options)),
      executor_(executor),
      held_(options.max_queued_bytes, options.max_queued_bytes_total),
      cancelled_error_(std::make_exception_ptr(Error(Code::kConflict, "engine: cancelled"))),
      closed_error_(std::make_exception_ptr(Error(Code::kBusy, "engine: closed"))),
      scheduler_(options.token_budget),
      time_share_(options.sampling_share),
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

// ---- submitting and cancelling

void Dispatcher::require_room(std::span<const Jobs::node_type> jobs) const {
  std::map<std::string, int64_t> more;
  for (const auto& job : jobs) ++more[tenant_of(job.mapped().operation)];
  for (const auto& [tenant, n] : more) {
    const auto it = tenants_.find(tenant);
    const int64_t queued = it == tenants_.end() ? 0 : it->second.num_queued;
    require(queued + n <= options_.max_queued, Code::kBusy, "engine: tenant '", tenant, "' has ",
            queued, " operations in its queue and submits ", n, ", max_queued is ",
            options_.max_queued, "; wait for some of their results");
  }
  const auto all = static_cast<int64_t>(jobs_.size() + jobs.size());
  require(all <= options_.max_queued_total, Code::kBusy, "engine: tenant '",
          jobs.empty() ? "" : tenant_of(jobs[0].mapped().operation), "' submits ", jobs.size(),
          " operations while ", jobs_.size(), " of all tenants are queued, max_queued_total is ",
          options_.max_queued_total, "; try again later");
}

// With the bytes that they hold, and no ids yet.
std::vector<Dispatcher::Jobs::node_type> Dispatcher::jobs_of(std::vector<Operation> operations,
                                                             const SampleHooks& hooks) {
  const bool streams = static_cast<bool>(hooks.on_tokens);
  std::map<std::string, int64_t> together;
  std::vector<int64_t> bytes;
  for (const Operation& operation : operations) {
    bytes.push_back(num_bytes(operation) + executor_.max_result_bytes(operation, streams));
    together[tenant_of(operation)] += bytes.back();
  }
  // Not merely busy: no waiting helps.
  const int64_t most = std::min(options_.max_queued_bytes, options_.max_queued_bytes_total);
  for (const auto& [tenant, sum] : together) {
    require(operations.size() == 1 || sum <= most, Code::kInvalid, "engine: ", operations.size(),
            " operations that are submitted together take ", sum, " bytes of tenant '", tenant,
            "' with their results, max_queued_bytes is ", options_.max_queued_bytes,
            " and max_queued_bytes_total ", options_.max_queued_bytes_total,
            "; submit fewer at once");
  }

  std::vector<Jobs::node_type> out;
  for (size_t i = 0; i < operations.size(); ++i) {
    Jobs one;
    Job& job = one[0];
    job.operation = std::move(operations[i]);
    job.room = held_.reserve(tenant_of(job.operation), bytes[i]);
    job.prepared =
        executor_.prepare(job.operation, [&](int64_t more) { job.room->resize(bytes[i] += more); });
    if (std::holds_alternative<Sample>(job.operation)) {
      job.hooks = hooks;
      job.streams = streams;
    }
    out.push_back(one.extract(0));
  }
  return out;
}

void Dispatcher::enter(Jobs::node_type node) {
  Job& job = node.mapped();
  const std::string& name = tenant_of(job.operation);
  Tenant& tenant = tenants_[name];
  job.id = node.key();
  jobs_.insert(std::move(node));
  ++tenant.num_queued;
  scheduler_.push(name, job.id, tokens_of(job.operation), executor_.joins(job.operation));
}

std::vector<Future> Dispatcher::submit(std::vector<Operation> operations,
                                       const SampleHooks& hooks) {
  std::vector<Jobs::node_type> jobs = jobs_of(std::move(operations), hooks);
  std::vector<Future> futures;
  for (auto& job : jobs)
    futures.push_back({job.mapped().promise.get_future(), 0, job.mapped().room});
  {
    const Lock lock(mutex_);
    require(!closed_, Code::kBusy, "engine: closed");
    require_room(jobs);
    const int64_t first = next_id_;
    try {
      for (size_t i = 0; i < jobs.size(); ++i) {
        futures[i].id = jobs[i].key() = next_id_++;
        enter(std::move(jobs[i]));
      }
    } catch (...) {
      // Memory ran out. No caller has seen them.
      for (int64_t id = first; id < next_id_; ++id) {
        if (jobs_.contains(id)) extract(id);
      }
      throw;
    }
  }
  ready_.notify_one();
  return futures;
}

bool Dispatcher::cancel(int64_t id) {
  Jobs::node_type queued;
  {
    const Lock lock(mutex_);
    const auto it = jobs_.find(id);
    if (it == jobs_.end() || it->second.state == Job::kFinal) return false;
    Job& job = it->second;
    if (job.state != Job::kQueued && !job.cancelled) cancelled_.push_back(id);
    job.cancelled = true;
    if (job.state == Job::kQueued) {
      queued = extract(id);
    } else if (!running_.empty() && std::ranges::all_of(running_, &Job::cancelled)) {
      stop_ = true;
    }
  }
  if (queued)
    fail(queued.mapped(), cancelled_error_);
  else
    ready_.notify_one();
  return true;
}

Stats Dispatcher::stats() const {
  const Lock lock(mutex_);
  Stats out = stats_;
  out.num_queued = std::ssize(jobs_);
  out.queued_bytes = held_.in_all();
  for (const auto& [name, t] : tenants_)
    out.tenants[name] = {t.num_queued, scheduler_.num_tokens(name), t.num_sampled};
  return out;
}

Dispatcher::Jobs::node_type Dispatcher::extract(int64_t id) {
  scheduler_.remove(id);
  Jobs::node_type job = jobs_.extract(id);
  num_sampling_ -= job.mapped().state == Job::kSampling;
  const auto tenant = tenants_.find(tenant_of(job.mapped().operation));
  if (--tenant->second.num_queued == 0 && tenant->second.created_by == 0) tenants_.erase(tenant);
  return job;
}

void Dispatcher::fail(Job& job, const std::exception_ptr& error) const {
  job.hooks = {};  // before its future is ready, like all of this
  job.prepared.reset();
  job.room->resize(0);
  job.promise.set_exception(job.cancelled ? cancelled_error_ : error);
}

// ---- the dispatcher's thread: what runs next

void Dispatcher::loop() {
  executor_.begin();
  for (bool more = true; more;) {
    if (const auto error = attempt([&] { more = turn(); })) drop_newest(error);
  }
  Jobs left;
  {
    const Lock lock(mutex_);
    left.swap(jobs_);
    for (auto& [name, tenant] : tenants_) tenant.num_queued = 0;
  }
  for (auto job = left.rbegin(); job != left.rend(); ++job) {  // undone the last one first
    undo(job->first);
    fail(job->second, closed_error_);
  }
}

// False: closed.
bool Dispatcher::turn() {
  drop_cancelled();
  const std::optional<Side> side = next_side();
  if (!side) return false;
  const double begin = executor_.seconds();
  if (*side == Side::kTraining)
    train();
  else
    sample();
  const double seconds = executor_.seconds() - begin;
  const Lock lock(mutex_);
  time_share_.ran(*side, seconds, contested_);
  (*side == Side::kTraining ? stats_.training_seconds : stats_.sampling_seconds) += seconds;
  return true;
}

// Waits for something to do. None: closed.
std::optional<Side> Dispatcher::next_side() {
  Lock lock(mutex_);
  while (!closed_) {
    const bool heads = !take_heads().empty(), batch = scheduler_.has_batch(!draining_);
    const bool training = heads || batch, sampling = num_sampling_ > 0;
    contested_ = training && sampling;
    if (heads || sampling || (batch && !gathers())) return time_share_.next(training, sampling);
    if (batch)
      lock.wait_for(ready_, *gathers_until_ - executor_.seconds());
    else
      lock.wait(ready_);
  }
  return std::nullopt;
}

// True: the batch that could run waits for a tenant of the last one.
bool Dispatcher::gathers() {
  if (draining_ || options_.gather_ms == 0 || !cancelled_.empty() || num_sampling_ > 0)
    return false;
  const bool missing = std::ranges::any_of(gathered_, [this](const auto& of) REQUIRES(mutex_) {
    const auto it = tenants_.find(of.first);
    return it == tenants_.end() || it->second.num_queued == 0;
  });
  if (!missing) return false;
  const double now = executor_.seconds();
  if (!gathers_until_) gathers_until_ = now + options_.gather_ms / 1000;
  return now < *gathers_until_;
}

// Operations that run by themselves, each the next of its tenant.
std::vector<Dispatcher::Job*> Dispatcher::take_heads() {
  std::vector<Job*> out;
  for (const int64_t id : scheduler_.heads()) out.push_back(&jobs_.at(id));
  draining_ = std::ranges::any_of(
      out, [this](const Job* job) { return executor_.changes_base(job->operation); });
  std::erase_if(out, [this](const Job* job) REQUIRES(mutex_) { return held_back(job->operation); });
  return out;
}

bool Dispatcher::held_back(const Operation& operation) {
  if (std::holds_alternative<Sample>(operation)) return draining_;
  return executor_.changes_base(operation) &&
         (num_sampling_ > 0 || scheduler_.others_have_begun(tenant_of(operation)));
}

void Dispatcher::train() {
  for (int i = 0; i < kHeadsInARow; ++i) {
    std::vector<Job*> heads;
    {
      const Lock lock(mutex_);
      if (!cancelled_.empty()) return;  // first of all
      heads = take_heads();
      for (Job* job : heads) {
        job->state = Job::kFinal;
        if (!std::holds_alternative<Sample>(job->operation)) continue;
        job->state = Job::kSampling;
        ++num_sampling_;
        scheduler_.remove(job->id);  // its tenant's next operation need not wait for it
      }
    }
    if (heads.empty()) break;
    for (Job* job : heads) {
      if (closed_) return;
      run_head(*job);
    }
  }
  run_batch();
}

void Dispatcher::run_head(Job& job) {
  const auto error = attempt([&] {
    const auto* sample = std::get_if<Sample>(&job.operation);
    if (!sample) return run_alone(job);
    Share share;
    {
      const Lock lock(mutex_);
      share = scheduler_.share(sample->tenant);
    }
    executor_.start(job.id, *sample, share, std::exchange(job.hooks, {}));
  });
  if (error) drop(job.id, error);
}

void Dispatcher::run_alone(Job& job) {
  const std::string& name = tenant_of(job.operation);
  Result result = executor_.run(job.operation, job.prepared.get());
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
      gathered_.erase(name);
      tenant.created_by = tenant.num_sampled = 0;
    }
    done = extract(job.id);
  }
  succeed(std::move(done), std::move(result));
}

// Throws when memory runs out: then nothing has left the scheduler.
Dispatcher::Batch Dispatcher::form_batch() {
  Batch out;
  const std::vector<Slice> slices = scheduler_.next_batch(!draining_);
  if (slices.empty()) return out;
  try {
    int64_t num_tokens = 0;
    for (const Slice& slice : slices) {
      Job& job = jobs_.at(slice.id);
      out.work.push_back({slice.id, &job.operation, slice.first, slice.last});
      out.jobs.push_back(&job);
      ++out.tenants[tenant_of(job.operation)];
      num_tokens += slice.num_tokens;
    }
    out.outcome.ended.reserve(slices.size());
    out.outcome.rewound.reserve(slices.size());
    const BatchStats batch{num_tokens, std::ssize(out.tenants)};
    stats_.last_batches.push_back(batch);
    if (stats_.last_batches.size() > kLastBatches) stats_.last_batches.pop_front();
    ++stats_.num_batches;
    stats_.batches.num_tokens += batch.num_tokens;
    stats_.batches.num_tenants += batch.num_tenants;
  } catch (...) {
    scheduler_.take_back(slices);
    throw;
  }
  // Gradients of operations that join can't be told apart any more.
  for (const Slice& slice : slices) {
    Job& job = jobs_.at(slice.id);
    job.state = out.tenants.at(tenant_of(job.operation)) > 1 ? Job::kFinal : Job::kTraining;
  }
  return out;
}

void Dispatcher::run_batch() {
  Batch batch;
  {
    const Lock lock(mutex_);
    if (closed_ || !cancelled_.empty()) return;  // first of all
    take_heads();                                // those that ran may have let others go on
    if (scheduler_.has_batch(!draining_) && gathers()) return;
    batch = form_batch();
    if (batch.work.empty()) return;
    gathers_until_.reset();
    gathered_ = std::move(batch.tenants);
    running_ = std::move(batch.jobs);
    stop_ = false;
  }
  const auto error = attempt([&] { executor_.run_batch(batch.work, stop_, batch.outcome); });
  {
    const Lock lock(mutex_);
    running_.clear();
    if (!error) {
      stats_.num_passes += batch.outcome.num_passes;
      for (const Rewound& r : batch.outcome.rewound) {
        scheduler_.rewind(r.id, r.alone);
        jobs_.at(r.id).state = Job::kTraining;
      }
    }
  }
  if (!error) return end(batch.outcome.ended);
  if (stop_) return;  // the next turn drops them, or the end of the loop
  for (auto work = batch.work.rbegin(); work != batch.work.rend(); ++work) drop(work->id, error);
}

void Dispatcher::sample() {
  std::vector<Ended> ended;
  if (const auto error = attempt([&] { ended = executor_.step(); })) {
    // Most likely memory ran out: the newest fails, the others are tried again without it.
    int64_t id = executor_.newest();
    if (id == 0) {
      const Lock lock(mutex_);
      const auto samples = [](const auto& job) { return job.second.state == Job::kSampling; };
      id = std::find_if(jobs_.rbegin(), jobs_.rend(), samples)->first;
    }
    return drop(id, error);
  }
  {
    const Lock lock(mutex_);
    ++stats_.num_steps;
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
  const int64_t most = std::min(options_.max_queued_bytes, options_.max_queued_bytes_total);
  const auto error = attempt([&] { job.room->resize(std::min(bytes, most)); });
  if (error && std::holds_alternative<InspectResult>(result)) return fail(job, error);
  job.operation = {};
  job.hooks = {};
  job.prepared.reset();
  job.room.reset();  // from here on the Future's alone: who has the result sees it given back
  job.promise.set_value(std::move(result));
}

void Dispatcher::drop_cancelled() {
  while (true) {
    int64_t id = 0;
    {
      const Lock lock(mutex_);
      if (cancelled_.empty()) return;
      id = cancelled_.back();
      cancelled_.pop_back();
    }
    drop(id, cancelled_error_);
  }
}

// Memory ran out between operations: the newest fails, of those that have not begun if there are
// some. Needs no memory itself.
void Dispatcher::drop_newest(std::exception_ptr error) {
  int64_t id = 0;
  {
    const Lock lock(mutex_);
    if (jobs_.empty()) return;
    const auto newest = std::find_if(jobs_.rbegin(), jobs_.rend(), [](const auto& job) {
      return job.second.state == Job::kQueued;
    });
    id = (newest == jobs_.rend() ? jobs_.rbegin() : newest)->first;
  }
  drop(id, error);
}

// Its tenant is as if it had never been. Nothing if it has ended.
void Dispatcher::drop(int64_t id, const std::exception_ptr& error) {
  undo(id);
  Jobs::node_type job;
  {
    const Lock lock(mutex_);
    if (!jobs_.contains(id)) return;
    job = extract(id);
  }
  fail(job.mapped(), error);
}

void Dispatcher::undo(int64_t id) {
  (void)attempt([&] { executor_.undo(id); });
}

}  // namespace twinkle::engine
