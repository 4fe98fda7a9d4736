#include "twinkle/engine/schedule/dispatcher.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace twinkle::engine {
namespace {

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
  const auto add = [&](const std::vector<Example>& sequences) {
    for (const Example& s : sequences) out.push_back(std::ssize(s.input_ids));
  };
  if (const auto* f = std::get_if<Forward>(&operation)) add(f->sequences);
  if (const auto* b = std::get_if<ForwardBackward>(&operation)) add(b->sequences);
  return out;
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
    : options_(checked(options)),
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
    if (std::exchange(closed_, true)) return;
  }
  ready_.notify_all();
  thread_.join();
  Jobs waiting;  // none of them can be cancelled from here on
  {
    const Lock lock(mutex_);
    waiting.swap(jobs_);
    num_queued_.clear();
  }
  for (auto& [id, job] : waiting) job.fail(closed_error_);
}

void Dispatcher::require_room(std::span<const Jobs::node_type> jobs) const {
  std::map<std::string, int64_t> more;
  for (const auto& job : jobs) ++more[tenant_of(job.mapped().operation)];
  for (const auto& [tenant, n] : more) {
    const auto it = num_queued_.find(tenant);
    const int64_t queued = it == num_queued_.end() ? 0 : it->second;
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
  const auto bytes_of = [this](const Operation& operation) {
    return num_bytes(operation) + executor_.max_result_bytes(operation);
  };
  std::map<std::string, int64_t> together;
  for (const Operation& operation : operations)
    together[tenant_of(operation)] += bytes_of(operation);
  // What can never be held at once is not merely busy: who waits for room would wait for ever.
  const int64_t most = std::min(options_.max_queued_bytes, options_.max_queued_bytes_total);
  for (const auto& [tenant, bytes] : together) {
    require(operations.size() == 1 || bytes <= most, Code::kInvalid, "engine: ", operations.size(),
            " operations that are submitted together take ", bytes, " bytes of tenant '", tenant,
            "' with their results, max_queued_bytes is ", options_.max_queued_bytes,
            " and max_queued_bytes_total ", options_.max_queued_bytes_total,
            "; submit fewer at once");
  }

  std::vector<Jobs::node_type> out;
  for (Operation& operation : operations) {
    Jobs one;
    Job& job = one[0];
    int64_t bytes = bytes_of(operation);
    job.room = held_.reserve(tenant_of(operation), bytes);
    job.prepared =
        executor_.prepare(operation, [&](int64_t more) { job.room->resize(bytes += more); });
    if (std::holds_alternative<Sample>(operation)) job.hooks = hooks;
    job.operation = std::move(operation);
    out.push_back(one.extract(0));
  }
  return out;
}

void Dispatcher::enter(Jobs::node_type node) {
  Job& job = node.mapped();
  const std::string& tenant = tenant_of(job.operation);
  int64_t& queued = num_queued_[tenant];
  job.id = node.key();
  jobs_.insert(std::move(node));
  ++queued;
  scheduler_.push(tenant, job.id, tokens_of(job.operation), executor_.joins(job.operation));
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
      // For want of memory. Nobody has seen them.
      for (int64_t id = first; id < next_id_; ++id) {
        if (jobs_.contains(id)) extract(id);
      }
      std::erase_if(num_queued_, [](const auto& queued) { return queued.second == 0; });
      throw;
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
      stop_ = !running_.empty() &&
              std::ranges::all_of(running_, [this](int64_t other) REQUIRES(mutex_) {
                return jobs_.at(other).cancelled;
              });
      ready_.notify_one();
      return true;
    }
    job = extract(id);
  }
  job.mapped().fail(cancelled_error_);
  return true;
}

Stats Dispatcher::stats() const {
  const Lock lock(mutex_);
  Stats out = stats_;
  out.num_queued = std::ssize(jobs_);
  out.queued_bytes = held_.in_all();
  for (const auto& [tenant, load] : scheduler_.load())
    out.tenants[tenant].num_tokens = load.num_tokens;
  for (const auto& [tenant, n] : num_queued_) out.tenants[tenant].num_queued = n;
  for (const auto& [tenant, made] : created_) out.tenants[tenant].num_sampled = made.num_sampled;
  return out;
}

Dispatcher::Jobs::node_type Dispatcher::extract(int64_t id) {
  scheduler_.remove(id);
  Jobs::node_type job = jobs_.extract(id);
  num_sampled_ -= job.mapped().sampled;
  const auto queued = num_queued_.find(tenant_of(job.mapped().operation));
  if (--queued->second == 0) num_queued_.erase(queued);
  return job;
}

}  // namespace twinkle::engine
