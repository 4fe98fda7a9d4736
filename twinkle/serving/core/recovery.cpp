// After a start: runs get back what they had, from their snapshots, and what came behind these is
// done again, in its order, before what is new. Everything else is served meanwhile.
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"
#include "twinkle/serving/core/core.h"
#include "twinkle/store/crc32c.h"

namespace twinkle::server::core {
void Core::recover() {
  futures_.keep_read();
  for (const auto& [id, run] : domain_.runs()) {
    Live& live = live_[id];
    live.given = run.snapshot.seq_id;
    live.released = std::ssize(run.snapshot.versions);
    tasks_.start(restore(id));
  }
  for (const auto& [id, future] : domain_.futures()) {
    const auto [of, seq_id] = parse_request_id(id);
    const Sampler* const sampler = future.is_ended ? nullptr : domain_.sampler(of);
    if (sampler) tasks_.start(carry_out_sample(id, *sampler, nullptr));
  }
  for (const auto& [id, run] : domain_.runs()) tasks_.start(give_up_missing(id));
  for (const auto& [path, checkpoint] : domain_.checkpoints()) keep(path);
  remove_folders();
  check_quiet();
}

// All enters the run's line before this waits for anything, so that what is new comes behind it.
Task<> Core::restore(std::string id) {
  const Run& run = *domain_.run(id);
  const bool is_whole = domain_.has_one_arithmetic();
  std::vector<int64_t> again, begun;
  for (const auto& [seq_id, work] : run.work) {
    if (work.state == Work::kEnded) again.push_back(seq_id);
    if (work.state == Work::kStarted) begun.push_back(seq_id);
  }
  const Snapshot snapshot = run.snapshot;
  const Origin origin = run.origin;
  const bool is_removed = run.is_made && snapshot.folder.empty() && !origin.folder.empty() &&
                          !is_there(state_ / origin.folder);
  if (is_removed)
    lose(id, "server: the run '" + id + "' is lost: the checkpoint in " +
                 (state_ / origin.folder).string() +
                 ", with which it began, was removed; put it back and start the server again, or "
                 "make another run");
  if (!run.is_made || is_removed) {
    if (run.lost.empty()) tasks_.start(make_run(id, true));
    for (const int64_t seq_id : begun) tasks_.start(carry_out(id, seq_id, {}, true));
    co_return;
  }
  live_[id].is_restored = false;
  Task<engine::Outcome> made =
      snapshot.folder.empty() ? begin_run(id, origin.folder, origin.optimizer, false, true)
                              : begin_run(id, "snapshots/" + snapshot.folder, true, is_whole, true);
  for (auto next = begun.begin(); const int64_t seq_id : again) {
    for (; next != begun.end() && *next < seq_id; next = begun.erase(next))
      tasks_.start(carry_out(id, *next, {}, true));
    tasks_.start(do_again(id, seq_id));
  }
  for (const int64_t seq_id : begun) tasks_.start(carry_out(id, seq_id, {}, true));
  std::exception_ptr error;
  {
    const engine::Outcome outcome = co_await made;  // while it lives it takes the run's room
    error = outcome.error;
  }
  if (error && domain_.run(id))
    lose(id, snapshot.folder.empty()
                 ? text_of(error)
                 : "server: the snapshot of the run '" + id + "' in " +
                       (state_ / "snapshots" / snapshot.folder).string() +
                       " cannot be read: " + text_of(error) + "; restore a backup");
  while (domain_.run(id) && live_[id].again > 0) {
    const Later<bool> later;
    live_[id].waiting.push_back(later);
    co_await later;
  }
  if (!domain_.run(id)) co_return;
  live_[id].is_restored = true;
  changed(id);
}

Task<> Core::do_again(std::string id, int64_t seq_id) {
  const std::shared_ptr<Queued> queued = queued_of(*domain_.run(id), seq_id, true);
  const Work work = domain_.run(id)->work.at(seq_id);
  ++live_[id].again;
  ++num_again_;
  const engine::Outcome outcome = co_await queues_.run(queued);
  --num_again_;
  ++num_done_again_;
  if (!domain_.run(id)) co_return;
  --live_[id].again;
  live_[id].given = std::max(live_[id].given, seq_id);
  const bool is_same =
      !outcome.error && store::crc32c(engine::to_bytes(outcome.result)) == work.digest;
  // A step that dropped its window has failed for its client, with no result.
  if (!is_same && !work.drops && domain_.run(id)->lost.empty() && domain_.has_one_arithmetic())
    lose(id, "server: '" + queued->id +
                 "' ended otherwise when it was done again than the journal says; the run is not "
                 "what its client was told: make another" +
                 (outcome.error ? ". It failed: " + text_of(outcome.error) : ""));
  changed(id);
}

// The engine has the versions that it had, or their folders.
Task<> Core::recovered(std::string id) {
  while (domain_.run(id) && !live_[id].is_restored) {
    const Later<bool> later;
    live_[id].waiting.push_back(later);
    co_await later;
  }
  require(domain_.run(id), Code::kNotFound, "server: the run '", id, "' was deleted");
}

}  // namespace twinkle::server::core
