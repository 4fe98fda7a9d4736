#include "twinkle/engine/schedule/dispatcher.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>
#include <utility>

#include "twinkle/base/error.h"

namespace twinkle::engine {
namespace {

// Of one tenant before a batch. With them it steps, and clips before it, without missing a batch;
// without a limit one could hold up all others.
constexpr int kHeadsInARow = 8;

DispatcherOptions checked(DispatcherOptions o) {
  validate(o);
  if (!o.clock) {
    o.clock = [] {
      const auto now = std::chrono::steady_clock::now().time_since_epoch();
      return std::chrono::duration<double>(now).count();
    };
  }
  return o;
}

std::vector<int64_t> tokens_of(const Operation& operation) {
  std::vector<int64_t> out;
  const auto add = [&](const std::vector<Sequence>& sequences) {
    for (const Sequence& s : sequences) out.push_back(std::ssize(s.input_ids));
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

std::exception_ptr cancelled() {
  return std::make_exception_ptr(Error(Code::kConflict, "engine: cancelled"));
}

// What it threw, to be handed to a future.
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
  at_least_one("max_sequences", o.max_sequences);
  require(o.sampling_share > 0 && o.sampling_share < 1, Code::kInvalid,
          "engine: sampling_share is ", o.sampling_share, ", it must be above 0 and below 1");
  require(o.gather_ms >= 0 && o.gather_ms <= 1000, Code::kInvalid, "engine: gather_ms is ",
          o.gather_ms, ", it must be from 0 to 1000");
}

Dispatcher::Dispatcher(const DispatcherOptions& options, Executor& executor)
    : options_(checked(options)),
      executor_(executor),
      scheduler_(options.token_budget),
      admission_(options.max_sequences),
      turns_(options.sampling_share),
      thread_([this] { loop(); }) {}

Dispatcher::~Dispatcher() {
  {
    const Lock lock(mutex_);
    closed_ = true;
  }
  ready_.notify_all();
  thread_.join();
  const Lock lock(mutex_);
  for (auto& [id, job] : jobs_) {
    job.fail(std::make_exception_ptr(Error(Code::kBusy, "engine: closed")));
  }
}

void Dispatcher::require_room(const std::vector<Operation>& operations) const {
  std::map<std::string, int64_t> more;
  for (const Operation& operation : operations) ++more[tenant_of(operation)];
  for (const auto& [tenant, n] : more) {
    const auto it = num_queued_.find(tenant);
    const int64_t queued = it == num_queued_.end() ? 0 : it->second;
    require(queued + n <= options_.max_queued, Code::kBusy, "engine: tenant '", tenant, "' has ",
            queued, " operations in its queue and submits ", n, ", max_queued is ",
            options_.max_queued, "; wait for some of their results");
  }
  const auto all = static_cast<int64_t>(jobs_.size() + operations.size());
  require(all <= options_.max_queued_total, Code::kBusy, "engine: tenant '",
          operations.empty() ? "" : tenant_of(operations[0]), "' submits ", operations.size(),
          " operations while ", jobs_.size(), " of all tenants are queued, max_queued_total is ",
          options_.max_queued_total, "; try again later");
}

std::vector<Future> Dispatcher::submit(std::vector<Operation> operations,
                                       const SampleHooks& hooks) {
  std::vector<Future> futures;
  {
    const Lock lock(mutex_);
    require(!closed_, Code::kBusy, "engine: closed");
    require_room(operations);
    for (Operation& operation : operations) {
      const int64_t id = next_id_++;
      Job& job = jobs_[id];
      job.id = id;
      job.operation = std::move(operation);
      if (std::holds_alternative<Sample>(job.operation)) job.hooks = hooks;
      const std::string& tenant = tenant_of(job.operation);
      ++num_queued_[tenant];
      scheduler_.push(tenant, id, tokens_of(job.operation), executor_.joins(job.operation));
      futures.push_back({job.promise.get_future(), id});
    }
  }
  ready_.notify_one();
  return futures;
}

bool Dispatcher::cancel(int64_t id) {
  Jobs::node_type job;
  {
    const Lock lock(mutex_);
    const auto it = jobs_.find(id);
    if (it == jobs_.end() || it->second.state == Job::kLast) return false;
    if (it->second.state == Job::kBegun) {
      if (!it->second.cancelled) cancelled_.push_back(id);
      it->second.cancelled = true;
      ready_.notify_one();
      return true;
    }
    job = extract(id);
  }
  job.mapped().fail(cancelled());
  return true;
}

Stats Dispatcher::stats() const {
  const Lock lock(mutex_);
  Stats out = stats_;
  out.num_queued = std::ssize(jobs_);
  for (const auto& [tenant, load] : scheduler_.load())
    out.tenants[tenant].num_tokens = load.num_tokens;
  for (const auto& [tenant, n] : num_queued_) out.tenants[tenant].num_queued = n;
  return out;
}

Dispatcher::Jobs::node_type Dispatcher::extract(int64_t id) {
  if (!scheduler_.remove(id)) admission_.remove(id);
  Jobs::node_type job = jobs_.extract(id);
  const auto queued = num_queued_.find(tenant_of(job.mapped().operation));
  if (--queued->second == 0) num_queued_.erase(queued);
  return job;
}

void Dispatcher::loop() {
  executor_.begin();
  while (true) {
    drop_cancelled();
    const std::optional<Side> side = next_turn();
    if (!side) return;
    const double begin = options_.clock();
    if (*side == Side::kTraining)
      train();
    else
      sample();
    const double seconds = options_.clock() - begin;
    turns_.ran(*side, seconds, contested_);
    const Lock lock(mutex_);
    (*side == Side::kTraining ? stats_.training_seconds : stats_.sampling_seconds) += seconds;
  }
}

// Waits for something to do. None: closed, and what had begun has ended.
std::optional<Side> Dispatcher::next_turn() {
  Lock lock(mutex_);
  while (true) {
    const bool heads = !take_heads().empty();
    const bool batch = scheduler_.has_batch(!closed_ && !draining_);
    const bool training = heads || batch;
    const bool sampling = admission_.size() > 0;
    contested_ = training && sampling;
    if (heads || sampling || (batch && !gathers())) return turns_.next(training, sampling);
    if (batch) {
      lock.wait_until(ready_, *gathers_until_);
      continue;
    }
    if (closed_) return std::nullopt;
    lock.wait(ready_);
  }
}

// Whether the batch that could run waits for a tenant of the last one.
bool Dispatcher::gathers() {
  if (closed_ || draining_ || options_.gather_ms == 0 || !cancelled_.empty()) return false;
  if (admission_.size() > 0) return false;
  const bool missing = std::any_of(gathered_.begin(), gathered_.end(),
                                   [this](const std::string& tenant)
                                       REQUIRES(mutex_) { return !num_queued_.contains(tenant); });
  if (!missing) return false;
  const auto now = std::chrono::steady_clock::now();
  const std::chrono::duration<double, std::milli> most(options_.gather_ms);
  if (!gathers_until_)
    gathers_until_ = now + std::chrono::duration_cast<std::chrono::steady_clock::duration>(most);
  return now < *gathers_until_;
}

// Operations that run by themselves and whose turn it is in their tenant's order.
std::vector<Dispatcher::Job*> Dispatcher::take_heads() {
  std::vector<Job*> out;
  for (const int64_t id : scheduler_.heads()) out.push_back(&jobs_.at(id));
  draining_ = std::any_of(out.begin(), out.end(), [this](const Job* job) {
    return executor_.changes_base(job->operation);
  });
  if (closed_) return {};
  std::erase_if(out, [this](const Job* job) REQUIRES(mutex_) { return held_back(job->operation); });
  return out;
}

bool Dispatcher::held_back(const Operation& operation) {
  if (std::holds_alternative<Sample>(operation)) return draining_;
  return executor_.changes_base(operation) &&
         (admission_.size() > 0 || scheduler_.others_have_begun(tenant_of(operation)));
}

void Dispatcher::drop_cancelled() {
  std::vector<Jobs::node_type> jobs;
  {
    const Lock lock(mutex_);
    for (const int64_t id : std::exchange(cancelled_, {})) {
      if (jobs_.contains(id)) jobs.push_back(extract(id));
    }
  }
  for (auto& job : jobs) {
    executor_.undo(job.key());
    job.mapped().fail(cancelled());
  }
}

void Dispatcher::train() {
  for (int i = 0; i < kHeadsInARow; ++i) {
    std::vector<Job*> heads;
    {
      const Lock lock(mutex_);
      if (!cancelled_.empty()) return;  // first of all
      heads = take_heads();
      for (Job* job : heads)
        job->state = std::holds_alternative<Sample>(job->operation) ? Job::kBegun : Job::kLast;
    }
    if (heads.empty()) break;
    for (Job* job : heads) run_head(*job);
  }
  run_batch();
}

void Dispatcher::run_head(Job& job) {
  if (const auto* sample = std::get_if<Sample>(&job.operation)) return start(job, *sample);
  Result result;
  if (const auto error = attempt([&] { result = executor_.run(job.operation); }))
    return fail(job.id, error);
  Jobs::node_type done;
  {
    const Lock lock(mutex_);
    const std::string& tenant = tenant_of(job.operation);
    if (const auto* create = std::get_if<Create>(&job.operation)) {
      scheduler_.set_share(tenant, {create->weight, create->priority});
      created_[tenant] = job.id;
    }
    if (std::holds_alternative<Delete>(job.operation)) {
      scheduler_.forget(tenant);
      gathered_.erase(tenant);
      created_.erase(tenant);
      stats_.tenants.erase(tenant);
    }
    done = extract(job.id);
  }
  done.mapped().promise.set_value(std::move(result));
}

void Dispatcher::start(Job& job, const Sample& sample) {
  Share share;
  {
    const Lock lock(mutex_);
    share = scheduler_.share(sample.tenant);
  }
  if (const auto error =
          attempt([&] { executor_.start(job.id, sample, share, std::exchange(job.hooks, {})); }))
    return fail(job.id, error);
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < sample.prompts.size(); ++i)
    sizes.push_back(sample.params[sample.params.size() == 1 ? 0 : i].num_samples);
  const Lock lock(mutex_);
  scheduler_.remove(job.id);  // what comes after it need not wait for it
  admission_.push(sample.tenant, share, job.id, std::move(sizes));
}

void Dispatcher::run_batch() {
  std::vector<Work> batch;
  {
    const Lock lock(mutex_);
    if (!cancelled_.empty()) return;  // first of all
    take_heads();                     // those that ran may have let others go on
    if (scheduler_.has_batch(!closed_ && !draining_) && gathers()) return;
    std::map<std::string, Job*> first;
    for (const Slice& slice : scheduler_.next_batch(!closed_ && !draining_)) {
      Job& job = jobs_.at(slice.id);
      batch.push_back({slice.id, &job.operation, slice.first, slice.last});
      // Gradients of operations that join can't be told apart any more.
      const auto [it, alone] = first.emplace(tenant_of(job.operation), &job);
      job.state = alone ? Job::kBegun : Job::kLast;
      if (!alone) it->second->state = Job::kLast;
    }
    if (batch.empty()) return;
    gathers_until_.reset();
    gathered_.clear();
    for (const auto& [tenant, job] : first) gathered_.insert(tenant);
    count(batch);
  }
  BatchOutcome outcome;
  if (const auto error = attempt([&] { outcome = executor_.run_batch(batch); }))
    return fail_all(batch, error);
  {
    const Lock lock(mutex_);
    stats_.num_passes += outcome.num_passes;
    for (const Rewound& r : outcome.rewound) {
      scheduler_.rewind(r.id, r.alone);
      jobs_.at(r.id).state = Job::kBegun;
    }
  }
  end(outcome.ended);
}

void Dispatcher::count(std::span<const Work> batch) {
  std::set<std::string> tenants;
  BatchStats now;
  for (const Work& work : batch) {
    tenants.insert(tenant_of(*work.operation));
    const std::vector<int64_t> tokens = tokens_of(*work.operation);
    now.num_tokens =
        std::accumulate(tokens.begin() + static_cast<ptrdiff_t>(work.first),
                        tokens.begin() + static_cast<ptrdiff_t>(work.last), now.num_tokens);
  }
  now.num_tenants = std::ssize(tenants);
  ++stats_.num_batches;
  stats_.batches.num_tokens += now.num_tokens;
  stats_.batches.num_tenants += now.num_tenants;
  stats_.last_batches.push_back(now);
  if (stats_.last_batches.size() > kLastBatches) stats_.last_batches.pop_front();
}

// Their tenants go back to before the first of theirs.
void Dispatcher::fail_all(std::span<const Work> batch, std::exception_ptr error) {
  for (auto work = batch.rbegin(); work != batch.rend(); ++work) executor_.undo(work->id);
  for (const Work& work : batch) fail(work.id, error);
}

std::optional<Admitted> Dispatcher::next_request() {
  const Lock lock(mutex_);
  return admission_.next();
}

void Dispatcher::sample() {
  StepOutcome outcome;
  const auto error = attempt([&] {
    while (const auto request = next_request()) executor_.admit(*request);
    outcome = executor_.step();
  });
  if (error) {
    // Most likely memory ran out: the newest pays, the others are tried again without it.
    int64_t id;
    {
      const Lock lock(mutex_);
      id = admission_.newest();
    }
    executor_.undo(id);
    return fail(id, error);
  }
  {
    const Lock lock(mutex_);
    ++stats_.num_steps;
    for (const Admitted& request : outcome.requests) admission_.release(request);
  }
  end(outcome.samples);
}

void Dispatcher::end(std::span<const Ended> ended) {
  for (const Ended& e : ended) {
    if (e.error) {
      fail(e.id, e.error);
      continue;
    }
    Jobs::node_type done;
    {
      const Lock lock(mutex_);
      done = extract(e.id);  // from here on cancel() is too late
    }
    if (done.mapped().cancelled) {
      executor_.undo(e.id);
      done.mapped().fail(cancelled());
      continue;
    }
    Result result = executor_.commit(e.id);
    {
      const Lock lock(mutex_);
      const std::string& tenant = tenant_of(done.mapped().operation);
      const auto made = created_.find(tenant);
      // Its tenant may be gone, and another have its name.
      if (made != created_.end() && made->second < e.id)
        stats_.tenants[tenant].num_sampled += num_sampled(result);
    }
    done.mapped().promise.set_value(std::move(result));
  }
}

void Dispatcher::fail(int64_t id, std::exception_ptr error) {
  Jobs::node_type failed;
  {
    const Lock lock(mutex_);
    failed = extract(id);
  }
  failed.mapped().fail(failed.mapped().cancelled ? cancelled() : error);
}

}  // namespace twinkle::engine
