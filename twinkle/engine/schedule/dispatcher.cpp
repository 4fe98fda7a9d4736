#include "twinkle/engine/schedule/dispatcher.h"

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
  const auto add = [&](const std::vector<Sequence>& sequences) {
    for (const Sequence& s : sequences) out.push_back(std::ssize(s.input_ids));
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

Dispatcher::~Dispatcher() { close(); }

void Dispatcher::close() {
  {
    const Lock lock(mutex_);
    if (std::exchange(closed_, true)) return;
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
  job.mapped().fail_cancelled();
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

}  // namespace twinkle::engine
