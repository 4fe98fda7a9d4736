#include "twinkle/server/tenants/silence.h"

#include <algorithm>
#include <utility>

#include "twinkle/base/error.h"

namespace twinkle::server {
namespace {

// Ids of what a session makes begin with its own.
std::string session_of(const std::string& id) { return id.substr(0, id.find(':')); }

}  // namespace

Silence::Silence(Backend& backend, Loop& loop, const Runs& runs, Snapshots& snapshots,
                 SilenceOptions options, std::function<void()> on_check)
    : backend_(backend),
      loop_(loop),
      runs_(runs),
      snapshots_(snapshots),
      options_(options),
      on_check_(std::move(on_check)) {
  wait();
}

void Silence::heard(const std::string& id) {
  if (options_.park_after.count() > 0) heard_.insert(session_of(id));
}

void Silence::set(const SilenceOptions& options) {
  if (options_.park_after.count() == 0) quiet_.clear();  // nobody was heard meanwhile
  options_ = options;
  wait();
}

void Silence::wait() {
  if (waits_ || options_.park_after.count() == 0) return;
  waits_ = true;
  const auto time = std::max(options_.park_after / kChecks, std::chrono::milliseconds(1));
  loop_.after(time, [this] {
    waits_ = false;
    if (options_.park_after.count() > 0) check();
    wait();
  });
}

void Silence::check() {
  for (const auto& [id, run] : runs_.all()) {
    int64_t& quiet = quiet_[id];
    quiet = heard_.contains(session_of(id)) ? 0 : quiet + 1;
    if (quiet == kChecks) snapshots_.catch_up(run);  // once: the disk may refuse
    if (quiet >= kChecks) park(run);
  }
  heard_.clear();
  on_check_();
}

// Each time, since the engine does not where the run is still read, or the disk refuses; of one
// that is parked it does nothing.
void Silence::park(const Run& run) {
  if (!run.is_made || !run.running.empty()) return;
  try {
    backend_.submit(backend_.check(engine::Park{run.id}), [](const engine::Outcome&) {});
  } catch (const Error&) {
    // There is no room; the next check tries again.
  }
}

}  // namespace twinkle::server
