#include "twinkle/server/service/runs.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

#include "twinkle/base/error.h"
#include "twinkle/base/json.h"
#include "twinkle/server/replay/brief.h"
#include "twinkle/server/tinker/fields.h"

namespace twinkle::server {
namespace {

// Of requests before which all has ended, so that no state tells them any more: but for their
// numbers.
void forget_refusals(Run& run) {
  while (!run.refused.empty() && run.refused.begin()->first < run.first_unended()) {
    const auto gone = run.refused.extract(run.refused.begin());
    if (!gone.mapped().is_told) run.refused_before.insert(gone.key());
  }
}

// Its errors name the fields of the wire.
void validate(const Backend& backend, const engine::Operation& operation) {
  try {
    backend.validate(operation);
  } catch (const Error& e) {
    throw Error(e.code, tinker::by_field(e.what()));
  }
}

}  // namespace

Run* Runs::find(const std::string& id) {
  const auto found = runs_.find(id);
  return found == runs_.end() ? nullptr : &found->second;
}

Run& Runs::add(Run run) {
  const std::string id = run.id;
  return runs_.insert_or_assign(id, std::move(run)).first->second;
}

namespace {

// Of one that has ended before another in front of it, `next`. A state whose window is still that
// of the optim_step behind `next` tells here what broke the window behind that.
RefusedState told_of(const Run& run, int64_t seq_id, int64_t next) {
  RefusedState out{.seq_id = seq_id, .is_told = true};
  const std::string cause = "seq_id " + std::to_string(seq_id) + ": ";
  if (next <= run.last_step && run.broken.starts_with(cause)) {
    out.why = run.broken.substr(cause.size());
    out.breaks_window = true;
  }
  return out;
}

}  // namespace

std::optional<std::vector<RunState>> Runs::state(const std::filesystem::path& state) const {
  std::vector<RunState> out;
  for (const auto& [id, run] : runs_) {
    const int64_t next = run.first_unended();
    if (run.num_creating > 0) return std::nullopt;
    const bool is_lost = operations_.lost().contains(id);
    RunState& to = out.emplace_back();
    to = {.id = id,
          .owner = run.owner,
          .base_model = run.base_model,
          .rank = run.rank,
          .next = next,
          .num_published = run.num_published,
          .is_made = run.is_made && !is_lost,
          .finished = run.finished,
          .is_lost = is_lost,
          .broken = next <= run.last_step ? run.broken_at_step : run.broken,
          .saved = {run.saved.begin(), run.saved.end()},
          .refused_before = run.refused_before.ranges(),
          .key_id = run.key_id,
          .last_ms = run.last_ms,
          .trains = run.trains,
          .is_unloaded = run.is_unloaded};
    for (const auto& [seq_id, refusal] : run.refused)
      to.refused.push_back({seq_id, refusal.why, refusal.breaks_window, refusal.is_told});
    // What failed before requests in front of it had ended is told, so it is not carried.
    for (int64_t seq_id = next; seq_id < run.next; ++seq_id)
      if (!run.running.contains(seq_id) && !run.refused.contains(seq_id))
        to.refused.push_back(told_of(run, seq_id, next));
    for (const auto& [seq_id, folder] : run.folders)
      to.folders.push_back({seq_id, folder.lexically_relative(state).string()});
  }
  return out;
}

void Runs::restore(const RunState& from, const std::filesystem::path& state) {
  Run& run = runs_[from.id];
  run.id = from.id;
  run.owner = from.owner;
  run.base_model = from.base_model;
  run.rank = from.rank;
  run.key_id = from.key_id;
  run.last_ms = from.last_ms;
  run.trains = from.trains;
  run.finished = from.finished;
  run.next = run.first_missing = from.next;
  run.given = from.next - 1;
  run.num_published = from.num_published;
  run.is_made = from.is_made;
  run.is_unloaded = from.is_unloaded;
  if (from.is_lost)
    operations_.lose(from.id, "server: the run '" + from.id +
                                  "' is lost: the checkpoint with which it began was removed; make "
                                  "another run");
  run.broken = from.broken;
  run.saved = {from.saved.begin(), from.saved.end()};
  run.refused_before = NumberSet(from.refused_before);
  for (const NumberedId& folder : from.folders) run.folders[folder.number] = state / folder.id;
  for (const RefusedState& refused : from.refused) {
    run.refused[refused.seq_id] = {refused.why, refused.breaks_window, refused.is_told};
    if (refused.seq_id >= from.next) take(run, refused.seq_id, {});
  }
}

std::string Runs::submit(Run& run, const Numbered& number, Ready ready, Source source,
                         Pending::OnEnd on_end) {
  const int64_t seq_id = number.seq_id;
  require(seq_id >= 1, Code::kInvalid, "server: seq_id is ", seq_id, ", it must be at least 1");
  require(!run.is_refused(seq_id), Code::kInvalid, "server: seq_id ", seq_id, " of '", run.id,
          "' was refused", run.why_refused(seq_id));
  const std::string request_id = run.request_id(seq_id);
  const bool is_carried = promises_.is_carried(request_id);
  // A save that had not ended when others behind it had.
  const bool is_behind = is_carried && seq_id < run.next;
  if (run.came(seq_id) && !is_behind) return request_id;
  require(is_carried || !run.finished, Code::kInvalid, "server: the session of the run '", run.id,
          "' has finished; make another");
  require(is_carried || seq_id - run.first_missing <= kMaxAhead, Code::kInvalid,
          "server: seq_id is ", seq_id, ", but ", run.first_missing, " of '", run.id,
          "' has not come; at most ", kMaxAhead, " numbers may be ahead of it");
  const auto pending =
      std::make_shared<Pending>(request_id, std::move(ready), std::move(source), std::move(on_end));
  pending->held = backend_.bytes_of(pending->ready->operation);
  pending->came_before = decisions_.is_decided();
  try {
    decisions_.decide([&] {
      require(!run.is_unloaded, Code::kInvalid, "server: the run '", run.id,
              "' could not be loaded with what it was to begin with; make another");
      validate(backend_, pending->ready->operation);
    });
  } catch (const Error& e) {
    // A step that is refused has taken nothing: its window goes on to the next.
    refuse(run, seq_id, e.what(), pending->accumulates && !pending->steps);
    throw;
  }
  // What waits for this number keeps its room until it has come: it is taken beyond the limit.
  const bool is_waited_for = seq_id == run.first_missing &&
                             std::any_of(run.waiting.upper_bound(seq_id), run.waiting.end(),
                                         [](const auto& waits) { return waits.second != nullptr; });
  if (!is_waited_for) decisions_.decide([&] { promises_.require_room(run.owner, pending->held); });
  decisions_.change([&] {
    promises_.open(request_id, run.owner, number.key_id, pending->held);
    // A state has the last one's already. Also behind a clock that was set back.
    if (!is_carried) run.last_ms = number.time_ms;
    if (is_behind)
      start(run, seq_id, pending);
    else
      take(run, seq_id, pending);
  });
  return request_id;
}

void Runs::refuse(Run& run, int64_t seq_id, const std::string& why, bool breaks_window) {
  if (seq_id < 1 || seq_id - run.first_missing > kMaxAhead || run.came(seq_id)) return;
  decisions_.change([&] {
    run.refused[seq_id] = {brief(why), breaks_window};
    take(run, seq_id, {});
  });
}

void Runs::take(Run& run, int64_t seq_id, const std::shared_ptr<Pending>& pending) {
  run.waiting[seq_id] = pending;
  while (run.came(run.first_missing)) ++run.first_missing;
  go_on(run);
  forget_refusals(run);
  if (pending && run.waiting.contains(seq_id)) pending->let_go();
}

void Runs::submit_first(Run& run, const std::shared_ptr<Pending>& pending) {
  pending->held = backend_.bytes_of(pending->ready->operation);
  pending->came_before = decisions_.is_decided();
  start(run, 0, pending);
}

// Has what is next done, up to an optim_step whose window has not ended.
void Runs::go_on(Run& run) {
  for (auto it = run.waiting.find(run.next); it != run.waiting.end();
       it = run.waiting.find(run.next)) {
    if (!it->second) {
      const Run::Refusal& refusal = run.refused.at(it->first);
      if (refusal.breaks_window && run.broken.empty())
        run.broken = "seq_id " + std::to_string(it->first) + ": " + refusal.why;
    } else {
      if (it->second->steps && run.is_window_open()) return;
      start(run, it->first, it->second);
    }
    run.waiting.erase(it);
    ++run.next;
  }
}

void Runs::start(Run& run, int64_t seq_id, const std::shared_ptr<Pending>& pending) {
  const bool accumulates = pending->accumulates, creates = pending->creates;
  const bool is_covered = snapshots_.covers(run.id, seq_id);
  pending->owner = run.owner;
  pending->is_rated = seq_id > 0;  // what makes the run is not held
  if (seq_id == 0) {
    ++run.num_creating;
  } else {
    run.running[seq_id] = {accumulates, pending->publishes, pending->saves};
    if (is_covered) run.given = std::max(run.given, seq_id);
    pending->on_given = [this, id = run.id, seq_id, steps = pending->steps,
                         publishes = pending->publishes] {
      Run& of = runs_.at(id);
      of.given = std::max(of.given, seq_id);
      if (steps) snapshots_.stepped(of);
      if (publishes) snapshots_.published(of);
    };
    pending->on_place = [this, id = run.id] { snapshots_.has_room(runs_.at(id)); };
  }
  if (pending->steps) {
    run.last_step = seq_id;
    run.broken_at_step = run.broken;
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
  pending->on_end = [this, id = run.id, seq_id, accumulates, creates,
                     on_end = std::move(pending->on_end)](const Ended& ended) {
    if (on_end) on_end(ended);
    snapshots_.ended(id, seq_id);
    if (creates) runs_.at(id).is_made = !ended.failed;
    if (seq_id == 0 && !creates) runs_.at(id).is_unloaded = ended.failed;
    end(id, seq_id, accumulates, ended);
  };
  operations_.start(pending, is_covered);
}

void Runs::end(const std::string& run_id, int64_t seq_id, bool accumulates, const Ended& ended) {
  const auto found = runs_.find(run_id);
  if (found == runs_.end()) return;
  Run& run = found->second;
  if (seq_id == 0)
    --run.num_creating;
  else
    run.running.erase(seq_id);
  if (ended.failed && accumulates && run.broken.empty())
    run.broken = brief("seq_id " + std::to_string(seq_id) + ": " + ended.body);
  go_on(run);
  forget_refusals(run);
}

void Runs::end_session(Run& run) {
  run.finished = true;
  const Response told =
      failure("server: the session has ended, and seq_id " + std::to_string(run.first_missing) +
                  ", for which this request waited, did not come",
              true);
  for (auto it = run.waiting.upper_bound(run.first_missing); it != run.waiting.end(); ++it) {
    if (!it->second) continue;
    const std::shared_ptr<Pending> ended = std::exchange(it->second, nullptr);
    run.refused[it->first] = {"the session has ended", ended->accumulates, true};
    if (ended->on_end)
      ended->on_end({.request_id = ended->request_id,
                     .failed = true,
                     .content_type = told.content_type,
                     .body = told.body});
    promises_.settle(ended->request_id, told);
  }
  snapshots_.catch_up(run);
}

}  // namespace twinkle::server
