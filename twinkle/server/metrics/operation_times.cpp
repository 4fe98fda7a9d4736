#include "twinkle/server/metrics/operation_times.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

namespace twinkle::server {
namespace {

using std::chrono::steady_clock;

constexpr auto number_of = [](const auto& run) { return run.second.number; };

}  // namespace

// All that `on_done` changes is there already: it must not throw.
engine::OnDone OperationTimes::watch(const engine::Operation& operation, engine::OnDone on_done) {
  const std::lock_guard lock(mutex_);
  const std::string& tenant = engine::tenant_of(operation);
  const bool trains = std::holds_alternative<engine::ForwardBackward>(operation);
  if (trains) this->trains(tenant);
  if (std::holds_alternative<engine::Delete>(operation)) runs_.erase(tenant);
  Times& times = times_[std::visit([](const auto& op) { return op.kName; }, operation)];
  return [this, &times, run = trains ? tenant : "", begin = steady_clock::now(),
          on_done = std::move(on_done)](engine::Outcome outcome) {
    {
      const std::chrono::duration<double> time = steady_clock::now() - begin;
      const std::lock_guard ended_lock(mutex_);
      times.waiting.add(std::max(0.0, time.count() - outcome.seconds));
      times.computing.add(outcome.seconds);
      if (!run.empty()) ended(run, outcome);
    }
    on_done(std::move(outcome));
  };
}

void OperationTimes::trains(const std::string& run) {
  runs_[run].number = ++num_trainings_;
  if (runs_.size() > kMaxRuns) runs_.erase(std::ranges::min_element(runs_, {}, number_of));
}

// One that failed says nothing of its run's loss.
void OperationTimes::ended(const std::string& run, const engine::Outcome& outcome) {
  const auto of = runs_.find(run);
  const auto* const result = std::get_if<engine::ForwardResult>(&outcome.result);
  if (of == runs_.end() || outcome.error || !result || result->num_tokens <= 0) return;
  of->second.loss = result->loss / result->num_tokens;
}

void OperationTimes::write(std::ostream& out) const {
  const std::lock_guard lock(mutex_);
  out << "# HELP twinkle_operation_waiting_seconds Time of an operation in the engine, without its "
         "share of computing.\n# TYPE twinkle_operation_waiting_seconds histogram\n";
  for (const auto& [name, times] : times_)
    times.waiting.write(out, "twinkle_operation_waiting_seconds",
                        "operation=\"" + std::string(name) + '"');
  out << "# HELP twinkle_operation_computing_seconds An operation's share of the engine's time.\n"
         "# TYPE twinkle_operation_computing_seconds histogram\n";
  for (const auto& [name, times] : times_)
    times.computing.write(out, "twinkle_operation_computing_seconds",
                          "operation=\"" + std::string(name) + '"');
  out << "# HELP twinkle_run_loss Loss a token of a run's last forward_backward.\n"
         "# TYPE twinkle_run_loss gauge\n";
  for (const auto& [id, run] : runs_)
    if (run.loss) out << "twinkle_run_loss{run=\"" << id << "\"} " << *run.loss << '\n';
}

}  // namespace twinkle::server
