// The dispatcher's thread: what runs next, and what becomes of it.
#include <algorithm>
#include <chrono>
#include <utility>

#include "twinkle/engine/schedule/dispatcher.h"

namespace twinkle::engine {
namespace {

// Of one tenant before a batch. With them it steps, and clips before it, without missing a batch;
// without a limit one could hold up all others.
constexpr int kHeadsInARow = 8;

int64_t num_sampled(const Result& result) {
  int64_t out = 0;
  const auto* sampled = std::get_if<SampleResult>(&result);
  if (!sampled) return out;
  for (const auto& samples : sampled->completions) {
    for (const Completion& c : samples) out += std::ssize(c.tokens);
  }
  return out;
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
    job.mapped().fail_cancelled();
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
    int64_t num_tokens = 0;
    for (const Slice& slice : scheduler_.next_batch(!closed_ && !draining_)) {
      Job& job = jobs_.at(slice.id);
      batch.push_back({slice.id, &job.operation, slice.first, slice.last});
      num_tokens += slice.num_tokens;
      // Gradients of operations that join can't be told apart any more.
      const auto [it, alone] = first.emplace(tenant_of(job.operation), &job);
      job.state = alone ? Job::kBegun : Job::kLast;
      if (!alone) it->second->state = Job::kLast;
    }
    if (batch.empty()) return;
    gathers_until_.reset();
    gathered_.clear();
    for (const auto& [tenant, job] : first) gathered_.insert(tenant);
    count(num_tokens, std::ssize(first));
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

void Dispatcher::count(int64_t num_tokens, int64_t num_tenants) {
  ++stats_.num_batches;
  stats_.batches.num_tokens += num_tokens;
  stats_.batches.num_tenants += num_tenants;
  stats_.last_batches.push_back({num_tokens, num_tenants});
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
      done.mapped().fail_cancelled();
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
  if (failed.mapped().cancelled) return failed.mapped().fail_cancelled();
  failed.mapped().fail(error);
}

}  // namespace twinkle::engine
