// The dispatcher's side of its callers: places, memory, and the queue.
#include "twinkle/engine/schedule/accepted.h"

#include <utility>

#include "twinkle/engine/schedule/dispatcher.h"

namespace twinkle::engine {
namespace {

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

// With the bytes that the operations hold, but without these, and no places yet.
std::vector<Accepted> Dispatcher::with_memory(std::span<const Operation> operations,
                                              const SampleHooks& hooks, Beyond beyond) {
  const bool streams = static_cast<bool>(hooks.on_tokens);
  std::map<std::string, int64_t> together;
  std::vector<int64_t> bytes;
  for (const Operation& operation : operations) {
    bytes.push_back(num_bytes(operation) + executor_.max_result_bytes(operation, streams));
    together[tenant_of(operation)] += bytes.back();
  }
  // Not merely busy: no waiting helps.
  for (const auto& [tenant, sum] : together) {
    require(operations.size() == 1 || sum <= held_.max(), Code::kInvalid,
            "engine: ", operations.size(), " operations that are submitted together take ", sum,
            " bytes of tenant '", tenant, "' with their results, max_queued_bytes is ",
            options_.max_queued_bytes, " and max_queued_bytes_total ",
            options_.max_queued_bytes_total, "; submit fewer at once");
  }

  std::vector<Accepted> out;
  out.reserve(operations.size());
  for (size_t i = 0; i < operations.size(); ++i) {
    Jobs one;
    Job& job = one[0];
    job.room = held_.reserve(tenant_of(operations[i]), bytes[i], beyond);
    job.prepared =
        executor_.prepare(operations[i], [&](int64_t more) { job.room->resize(bytes[i] += more); });
    if (std::holds_alternative<Sample>(operations[i])) {
      job.hooks = hooks;
      job.streams = streams;
    }
    out.push_back(Accepted(one.extract(0)));
  }
  return out;
}

int64_t Dispatcher::bytes_of(const Operation& operation) const {
  return num_bytes(operation) + executor_.max_result_bytes(operation, false);
}

void Dispatcher::require_possible(const Operation& operation) const {
  held_.require_possible(tenant_of(operation), bytes_of(operation));
}

void Dispatcher::require_room(std::span<const Operation> operations) const {
  std::map<std::string, int64_t> more;
  for (const Operation& operation : operations) ++more[tenant_of(operation)];
  for (const auto& [tenant, n] : more) {
    const auto it = tenants_.find(tenant);
    const int64_t queued = it == tenants_.end() ? 0 : it->second.num_queued;
    require(queued + n <= options_.max_queued, Code::kBusy, "engine: tenant '", tenant, "' has ",
            queued, " operations in its queue and submits ", n, ", max_queued is ",
            options_.max_queued, "; wait for some of their results");
  }
  require(num_queued_ + std::ssize(operations) <= options_.max_queued_total, Code::kBusy,
          "engine: tenant '", operations.empty() ? "" : tenant_of(operations[0]), "' submits ",
          operations.size(), " operations while ", num_queued_,
          " of all tenants are queued, max_queued_total is ", options_.max_queued_total,
          "; try again later");
}

std::vector<Accepted> Dispatcher::accept(std::span<Operation> operations, const SampleHooks& hooks,
                                         Beyond beyond) {
  std::vector<Accepted> out = with_memory(operations, hooks, beyond);
  const Lock lock(mutex_);
  require(!closed_, Code::kBusy, "engine: closed");
  require_room(operations);
  for (const Operation& o : operations) tenants_[tenant_of(o)];  // before any has its place
  for (size_t i = 0; i < out.size(); ++i) {
    ++tenants_.at(tenant_of(operations[i])).num_queued;
    ++num_queued_;
    out[i].job_.mapped().operation = std::move(operations[i]);
    out[i].dispatcher_ = this;
  }
  return out;
}

Accepted::~Accepted() {
  if (dispatcher_) dispatcher_->leave(tenant_of(operation()));
}

void Dispatcher::leave(const std::string& tenant) {
  const Lock lock(mutex_);
  count_out(tenant);
}

std::vector<int64_t> Dispatcher::submit(std::vector<Accepted> accepted,
                                        std::vector<OnDone> on_done) {
  std::vector<int64_t> ids(accepted.size());
  {
    const Lock lock(mutex_);
    require(!closed_, Code::kBusy, "engine: closed");
    const int64_t first = next_id_;
    try {
      for (size_t i = 0; i < accepted.size(); ++i) {
        Jobs::node_type& node = accepted[i].job_;
        Job& job = node.mapped();
        job.on_done = std::move(on_done[i]);
        ids[i] = job.id = node.key() = next_id_++;
        accepted[i].dispatcher_ = nullptr;  // its place is the job's
        jobs_.insert(std::move(node));
        ++tenants_.at(tenant_of(job.operation)).num_submitted;
        scheduler_.push(tenant_of(job.operation), job.id, tokens_of(job.operation),
                        executor_.joins(job.operation));
      }
    } catch (...) {
      // Memory ran out. No caller has seen them.
      for (int64_t id = first; id < next_id_; ++id) extract(id);
      throw;
    }
  }
  ready_.notify_one();
  return ids;
}

std::vector<Future> Dispatcher::submit(std::vector<Operation> operations,
                                       const SampleHooks& hooks) {
  std::vector<Accepted> accepted = accept(operations, hooks);
  std::vector<Future> futures;
  std::vector<OnDone> on_done;
  for (const Accepted& a : accepted) {
    const auto promise = std::make_shared<std::promise<Result>>();
    futures.push_back({promise->get_future(), 0, a.room()});
    on_done.push_back([promise](Outcome outcome) {
      outcome.room.reset();  // the Future's alone: who has the result sees it given back
      if (outcome.error)
        promise->set_exception(outcome.error);
      else
        promise->set_value(std::move(outcome.result));
    });
  }
  const std::vector<int64_t> ids = submit(std::move(accepted), std::move(on_done));
  for (size_t i = 0; i < ids.size(); ++i) futures[i].id = ids[i];
  return futures;
}

}  // namespace twinkle::engine
