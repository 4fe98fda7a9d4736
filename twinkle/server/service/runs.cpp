#include "twinkle/server/service/runs.h"

#include <utility>
#include <variant>

#include "twinkle/base/error.h"
#include "twinkle/base/json.h"

namespace twinkle::server {

using engine::Accepted;

Run* Runs::find(const std::string& id) {
  const auto found = runs_.find(id);
  return found == runs_.end() ? nullptr : &found->second;
}

Run& Runs::add(Run run) {
  const std::string id = run.id;
  return runs_.insert_or_assign(id, std::move(run)).first->second;
}

std::string Runs::submit(Run& run, int64_t seq_id, engine::Operation operation, Answered answer,
                         Operations::OnEnd on_end) {
  require(seq_id >= 1, Code::kInvalid, "server: seq_id is ", seq_id, ", it must be at least 1");
  if (const auto known = run.requests.find(seq_id); known != run.requests.end()) {
    require(!known->second.empty(), Code::kInvalid, "server: seq_id ", seq_id, " of '", run.id,
            "' was refused");
    return known->second;
  }
  const auto queued = std::make_shared<Run::Queued>();
  queued->accumulates = std::holds_alternative<engine::ForwardBackward>(operation) ||
                        std::holds_alternative<engine::Step>(operation);
  try {
    queued->accepted.emplace(backend_.check(std::move(operation)));
  } catch (const Error& e) {
    if (e.code != Code::kBusy)
      refuse(run, seq_id, e.what(), queued->accumulates);  // a busy one comes again
    throw;
  }
  queued->seq_id = seq_id;
  queued->request_id = run.id + ":" + std::to_string(seq_id);
  queued->answer = std::move(answer);
  queued->on_end = std::move(on_end);
  promises_.open(queued->request_id, run.owner);
  run.requests[seq_id] = queued->request_id;
  run.waiting[seq_id] = queued;
  go_on(run);
  return queued->request_id;
}

void Runs::refuse(Run& run, int64_t seq_id, const std::string& why, bool breaks_window) {
  if (seq_id < 1 || !run.requests.try_emplace(seq_id, "").second) return;
  const auto queued = std::make_shared<Run::Queued>();
  queued->seq_id = seq_id;
  queued->request_id = why;
  queued->accumulates = breaks_window;
  run.waiting[seq_id] = queued;
  go_on(run);
}

void Runs::submit_first(Run& run, const std::string& request_id, Accepted accepted, Answered answer,
                        Operations::OnEnd on_end) {
  const auto queued = std::make_shared<Run::Queued>();
  queued->accepted.emplace(std::move(accepted));
  queued->request_id = request_id;
  queued->answer = std::move(answer);
  queued->on_end = std::move(on_end);
  start(run, queued);
}

// Gives the engine what is next, up to an optim_step whose window has not ended.
void Runs::go_on(Run& run) {
  for (auto it = run.waiting.find(run.next); it != run.waiting.end();
       it = run.waiting.find(run.next)) {
    const std::shared_ptr<Run::Queued> queued = it->second;
    if (!queued->accepted) {
      if (queued->accumulates && run.broken.empty())
        run.broken = "seq_id " + std::to_string(queued->seq_id) + ": " + queued->request_id;
    } else {
      const bool steps = std::holds_alternative<engine::Step>(queued->accepted->operation());
      if (steps && run.num_running > 0) return;
      if (steps && !run.broken.empty()) {
        const std::string why = std::exchange(run.broken, {});
        queued->accepted.emplace(backend_.check(engine::ZeroGrad{run.id}));
        queued->answer = [why](const engine::Result&) {
          return failure(
              "optim_step: a request of its window failed, and what the others have "
              "accumulated was dropped; send the whole batch again. The failure: " +
                  why,
              true);
        };
      }
      start(run, queued);
      if (steps) snapshots_.stepped(run.id, queued->seq_id, run.num_published, queued->request_id);
    }
    run.waiting.erase(it);
    ++run.next;
  }
}

void Runs::start(Run& run, const std::shared_ptr<Run::Queued>& queued) {
  ++run.num_running;
  Accepted accepted = std::move(*queued->accepted);
  queued->accepted.reset();
  operations_.start(
      queued->request_id, std::move(accepted), queued->answer,
      [this, id = run.id, queued](const Ended& e) { end(id, *queued, e); },
      snapshots_.covers(run.id, queued->seq_id));
}

void Runs::end(const std::string& run_id, const Run::Queued& queued, const Ended& ended) {
  if (queued.on_end) queued.on_end(ended);
  snapshots_.ended(queued.request_id);
  const auto found = runs_.find(run_id);
  if (found == runs_.end()) return;
  Run& run = found->second;
  --run.num_running;
  if (ended.failed && queued.accumulates && run.broken.empty())
    run.broken = "seq_id " + std::to_string(queued.seq_id) + ": " + ended.body;
  go_on(run);
}

}  // namespace twinkle::server
