#include "twinkle/server/service/runs.h"

#include <memory>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/base/json.h"

namespace twinkle::server {

Run* Runs::find(const std::string& id) {
  const auto found = runs_.find(id);
  return found == runs_.end() ? nullptr : &found->second;
}

Run& Runs::add(Run run) {
  const std::string id = run.id;
  return runs_.insert_or_assign(id, std::move(run)).first->second;
}

std::string Runs::submit(Run& run, const Numbered& number, Ready ready, Source source,
                         Pending::OnEnd on_end) {
  const int64_t seq_id = number.seq_id;
  require(seq_id >= 1, Code::kInvalid, "server: seq_id is ", seq_id, ", it must be at least 1");
  if (const auto known = run.requests.find(seq_id); known != run.requests.end()) {
    require(!known->second.empty(), Code::kInvalid, "server: seq_id ", seq_id, " of '", run.id,
            "' was refused");
    return known->second;
  }
  require(!run.finished, Code::kInvalid, "server: the session of the run '", run.id,
          "' has finished; make another");
  require(seq_id - run.first_missing <= kMaxAhead, Code::kInvalid, "server: seq_id is ", seq_id,
          ", but ", run.first_missing, " of '", run.id, "' has not come; at most ", kMaxAhead,
          " numbers may be ahead of it");
  const std::string request_id = run.id + ":" + std::to_string(seq_id);
  const auto pending =
      std::make_shared<Pending>(request_id, std::move(ready), std::move(source), std::move(on_end));
  try {
    backend_.validate(pending->ready->operation);
  } catch (const Error& e) {
    refuse(run, seq_id, e.what(), pending->accumulates);
    throw;
  }
  promises_.open(request_id, run.owner, number.key_id);
  run.requests[seq_id] = request_id;
  take(run, seq_id, {.pending = pending});
  return request_id;
}

void Runs::refuse(Run& run, int64_t seq_id, const std::string& why, bool breaks_window) {
  if (seq_id < 1 || seq_id - run.first_missing > kMaxAhead) return;
  if (!run.requests.try_emplace(seq_id, "").second) return;
  take(run, seq_id, {.refusal = why, .breaks_window = breaks_window});
}

void Runs::take(Run& run, int64_t seq_id, Run::Queued queued) {
  while (run.requests.contains(run.first_missing)) ++run.first_missing;
  const auto pending = queued.pending;
  run.waiting[seq_id] = std::move(queued);
  go_on(run);
  if (pending && run.waiting.contains(seq_id)) pending->let_go();
}

void Runs::submit_first(Run& run, const std::shared_ptr<Pending>& pending) {
  start(run, 0, pending);
}

// Has what is next done, up to an optim_step whose window has not ended.
void Runs::go_on(Run& run) {
  for (auto it = run.waiting.find(run.next); it != run.waiting.end();
       it = run.waiting.find(run.next)) {
    const Run::Queued& queued = it->second;
    if (!queued.pending) {
      if (queued.breaks_window && run.broken.empty())
        run.broken = "seq_id " + std::to_string(it->first) + ": " + queued.refusal;
    } else {
      if (queued.pending->steps && run.num_running > 0) return;
      start(run, it->first, queued.pending);
    }
    run.waiting.erase(it);
    ++run.next;
  }
}

void Runs::start(Run& run, int64_t seq_id, const std::shared_ptr<Pending>& pending) {
  ++run.num_running;
  if (seq_id > 0) pending->owner = run.owner;  // what makes the run does not wait
  const bool accumulates = pending->accumulates;
  if (pending->steps) {
    pending->on_given = [this, id = run.id, seq_id, request_id = pending->request_id,
                         num_published = run.num_published, owner = run.owner] {
      snapshots_.stepped(id, seq_id, num_published, request_id, owner);
    };
    if (!run.broken.empty()) {
      const auto told = [why = std::exchange(run.broken, {})](const engine::Result&) {
        return failure(
            "optim_step: a request of its window failed, and what the others have accumulated was "
            "dropped; send the whole batch again. The failure: " +
                why,
            true);
      };
      pending->become({engine::ZeroGrad{run.id}, told});
    }
  }
  pending->on_end = [this, id = run.id, seq_id, accumulates, request_id = pending->request_id,
                     on_end = std::move(pending->on_end)](const Ended& ended) {
    if (on_end) on_end(ended);
    snapshots_.ended(request_id);
    end(id, seq_id, accumulates, ended);
  };
  operations_.start(pending, snapshots_.covers(run.id, seq_id));
}

void Runs::end(const std::string& run_id, int64_t seq_id, bool accumulates, const Ended& ended) {
  const auto found = runs_.find(run_id);
  if (found == runs_.end()) return;
  Run& run = found->second;
  --run.num_running;
  if (ended.failed && accumulates && run.broken.empty())
    run.broken = "seq_id " + std::to_string(seq_id) + ": " + ended.body;
  go_on(run);
}

void Runs::end_session(Run& run) {
  run.finished = true;
  const Response told =
      failure("server: the session has ended, and seq_id " + std::to_string(run.first_missing) +
                  ", for which this request waited, did not come",
              true);
  for (auto it = run.waiting.upper_bound(run.first_missing); it != run.waiting.end(); ++it) {
    Run::Queued& queued = it->second;
    if (!queued.pending) continue;
    const std::shared_ptr<Pending> ended = std::exchange(queued.pending, nullptr);
    queued.refusal = "the session has ended";
    queued.breaks_window = ended->accumulates;
    if (ended->on_end)
      ended->on_end({.request_id = ended->request_id,
                     .failed = true,
                     .content_type = told.content_type,
                     .body = told.body});
    promises_.settle(ended->request_id, told);
  }
}

}  // namespace twinkle::server
