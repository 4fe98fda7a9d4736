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
  for (bool more = true; more;) {
    if (const auto error = attempt([&] { more = turn(); })) shed(error);
  }
}

// False: closed, and what had begun has ended.
bool Dispatcher::turn() {
  drop_cancelled();
  const std::optional<Side> side = next_turn();
  if (!side) return false;
  const double begin = options_.clock();
  if (*side == Side::kTraining)
    train();
  else
    sample();
  const double seconds = options_.clock() - begin;
  time_share_.ran(*side, seconds, contested_);
  const Lock lock(mutex_);
  (*side == Side::kTraining ? stats_.training_seconds : stats_.sampling_seconds) += seconds;
  return true;
}

// Memory ran out between operations: the newest pays, of those that have not begun if there are
// some. Needs no memory itself.
void Dispatcher::shed(std::exception_ptr error) {
  Jobs::node_type shed;
  {
    const Lock lock(mutex_);
    if (jobs_.empty()) return;
    const auto newest = std::find_if(jobs_.rbegin(), jobs_.rend(), [](const auto& job) {
      return job.second.state == Job::kQueued;
    });
    shed = extract(newest == jobs_.rend() ? jobs_.rbegin()->first : newest->first);
  }
  undo(shed.key());
  shed.mapped().fail(shed.mapped().cancelled ? cancelled_error_ : error);
}

// Waits for something to do. None: closed, and what had begun has ended.
std::optional<Side> Dispatcher::next_turn() {
  Lock lock(mutex_);
  while (true) {
    const bool heads = !take_heads().empty();
    const bool batch = scheduler_.has_batch(!closed_ && !draining_);
    const bool training = heads || batch;
    const bool sampling = num_sampled_ > 0;
    contested_ = training && sampling;
    if (heads || sampling || (batch && !gathers())) return time_share_.next(training, sampling);
    if (batch) {
      lock.wait_for(ready_, *gathers_until_ - options_.clock());
      continue;
    }
    if (closed_) return std::nullopt;
    lock.wait(ready_);
  }
}

// Whether the batch that could run waits for a tenant of the last one.
bool Dispatcher::gathers() {
  if (closed_ || draining_ || options_.gather_ms == 0 || !cancelled_.empty()) return false;
  if (num_sampled_ > 0) return false;
  const bool missing = std::any_of(gathered_.begin(), gathered_.end(),
                                   [this](const std::string& tenant)
                                       REQUIRES(mutex_) { return !num_queued_.contains(tenant); });
  if (!missing) return false;
  const double now = options_.clock();
  if (!gathers_until_) gathers_until_ = now + options_.gather_ms / 1000;
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
         (num_sampled_ > 0 || scheduler_.others_have_begun(tenant_of(operation)));
}

void Dispatcher::drop_cancelled() {
  while (true) {
    Jobs::node_type job;
    {
      const Lock lock(mutex_);
      if (cancelled_.empty()) return;
      const int64_t id = cancelled_.back();
      cancelled_.pop_back();
      if (!jobs_.contains(id)) continue;
      job = extract(id);
    }
    undo(job.key());
    job.mapped().fail(cancelled_error_);
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
  if (const auto error = attempt([&] { run_alone(job); })) fail(job.id, error);
}

// Whatever needs memory comes before the operation: then it has happened.
void Dispatcher::run_alone(Job& job) {
  const std::string& tenant = tenant_of(job.operation);
  const auto* create = std::get_if<Create>(&job.operation);
  std::map<std::string, Created> made;
  if (create) made.try_emplace(tenant, Created{job.id});
  Result result = executor_.run(job.operation, job.prepared.get());
  Jobs::node_type done;
  {
    const Lock lock(mutex_);
    if (create) {
      scheduler_.set_share(tenant, {create->weight, create->priority});
      created_.merge(made);
    }
    if (std::holds_alternative<Delete>(job.operation)) {
      scheduler_.forget(tenant);
      gathered_.erase(tenant);
      created_.erase(tenant);
    }
    done = extract(job.id);
  }
  succeed(std::move(done), std::move(result));
}

void Dispatcher::start(Job& job, const Sample& sample) {
  const auto error = attempt([&] {
    Share share;
    {
      const Lock lock(mutex_);
      share = scheduler_.share(sample.tenant);
    }
    executor_.start(job.id, sample, share, std::exchange(job.hooks, {}));
    const Lock lock(mutex_);
    job.sampled = true;
    ++num_sampled_;
    scheduler_.remove(job.id);  // what comes after it need not wait for it
  });
  if (!error) return;
  undo(job.id);
  fail(job.id, error);
}

// A batch, and what is kept of it.
struct Dispatcher::Formed {
  std::vector<Work> batch;
  std::vector<int64_t> ids;
  std::set<std::string> tenants;
  BatchOutcome outcome;  // with room for all of it
};

Dispatcher::Formed Dispatcher::form_batch() {
  Formed out;
  const std::vector<Slice> slices = scheduler_.next_batch(!closed_ && !draining_);
  try {
    out.batch.reserve(slices.size());
    out.ids.reserve(slices.size());
    out.outcome.ended.reserve(slices.size());
    out.outcome.rewound.reserve(slices.size());
    std::map<std::string_view, Job*> first;
    int64_t num_tokens = 0;
    for (const Slice& slice : slices) {
      Job& job = jobs_.at(slice.id);
      out.batch.push_back({slice.id, &job.operation, slice.first, slice.last});
      out.ids.push_back(slice.id);
      num_tokens += slice.num_tokens;
      const std::string& tenant = tenant_of(job.operation);
      out.tenants.insert(tenant);
      // Gradients of operations that join can't be told apart any more.
      const auto [it, alone] = first.emplace(tenant, &job);
      job.state = alone ? Job::kBegun : Job::kLast;
      if (!alone) it->second->state = Job::kLast;
    }
    if (!out.batch.empty()) count(num_tokens, std::ssize(out.tenants));
  } catch (...) {
    scheduler_.take_back(slices);
    throw;
  }
  return out;
}

void Dispatcher::run_batch() {
  Formed formed;
  {
    const Lock lock(mutex_);
    if (!cancelled_.empty()) return;  // first of all
    take_heads();                     // those that ran may have let others go on
    if (scheduler_.has_batch(!closed_ && !draining_) && gathers()) return;
    formed = form_batch();
    if (formed.batch.empty()) return;
    gathers_until_.reset();
    gathered_ = std::move(formed.tenants);
    running_ = std::move(formed.ids);
    stop_ = false;
  }
  const auto error = attempt([&] { executor_.run_batch(formed.batch, stop_, formed.outcome); });
  {
    const Lock lock(mutex_);
    running_.clear();
    if (!error) {
      stats_.num_passes += formed.outcome.num_passes;
      for (const Rewound& r : formed.outcome.rewound) {
        scheduler_.rewind(r.id, r.alone);
        jobs_.at(r.id).state = Job::kBegun;
      }
    }
  }
  if (error) return fail_all(formed.batch, error);
  end(formed.outcome.ended);
}

void Dispatcher::count(int64_t num_tokens, int64_t num_tenants) {
  stats_.last_batches.push_back({num_tokens, num_tenants});
  ++stats_.num_batches;
  stats_.batches.num_tokens += num_tokens;
  stats_.batches.num_tenants += num_tenants;
  if (stats_.last_batches.size() > kLastBatches) stats_.last_batches.pop_front();
}

// Their tenants go back to before the first of theirs.
void Dispatcher::fail_all(std::span<const Work> batch, std::exception_ptr error) {
  for (auto work = batch.rbegin(); work != batch.rend(); ++work) undo(work->id);
  for (const Work& work : batch) fail(work.id, error);
}

void Dispatcher::sample() {
  std::vector<Ended> ended;
  if (const auto error = attempt([&] { ended = executor_.step(); })) {
    // Most likely memory ran out: the newest pays, the others are tried again without it.
    int64_t id = executor_.newest();
    if (id == 0) {
      const Lock lock(mutex_);
      const auto is_sampled = [](const auto& job) { return job.second.sampled; };
      id = std::find_if(jobs_.rbegin(), jobs_.rend(), is_sampled)->first;
    }
    undo(id);
    return fail(id, error);
  }
  {
    const Lock lock(mutex_);
    ++stats_.num_steps;
  }
  end(ended);
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
      undo(e.id);
      done.mapped().fail(cancelled_error_);
      continue;
    }
    Result result = executor_.commit(e.id);
    {
      const Lock lock(mutex_);
      const auto made = created_.find(tenant_of(done.mapped().operation));
      // Its tenant may be gone, and another have its name.
      if (made != created_.end() && made->second.by < e.id)
        made->second.num_sampled += num_sampled(result);
    }
    succeed(std::move(done), std::move(result));
  }
}

// The room that was reserved for it becomes what it takes. An Inspect's was not known before: one
// that is larger than the limit alone counts as the limit, one that does not fit now fails, which
// takes nothing back.
void Dispatcher::succeed(Jobs::node_type node, Result result) {
  Job& job = node.mapped();
  const int64_t most = std::min(options_.max_queued_bytes, options_.max_queued_bytes_total);
  const auto error = attempt([&] { job.room->resize(std::min<int64_t>(num_bytes(result), most)); });
  if (error && std::holds_alternative<InspectResult>(result)) return job.fail(error);
  job.operation = {};
  job.hooks = {};
  job.prepared.reset();
  job.room.reset();  // from here on the Future's alone: who has the result sees it given back
  job.promise.set_value(std::move(result));
}

void Dispatcher::undo(int64_t id) {
  (void)attempt([&] { executor_.undo(id); });
}

void Dispatcher::fail(int64_t id, std::exception_ptr error) {
  Jobs::node_type failed;
  {
    const Lock lock(mutex_);
    failed = extract(id);
  }
  failed.mapped().fail(failed.mapped().cancelled ? cancelled_error_ : error);
}

}  // namespace twinkle::engine
