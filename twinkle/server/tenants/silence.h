// Runs of sessions from which nothing is heard: they lose nothing but their place in the engine's
// memory, which their next request brings back, bit for bit. That changes no number, so it is not
// written down. They are saved before, so that a start has nothing of theirs to do again. Silence
// is counted while the server is up. Used by the service's thread alone.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "twinkle/base/fields/options.h"
#include "twinkle/server/loop.h"
#include "twinkle/server/service/backend.h"
#include "twinkle/server/service/runs.h"
#include "twinkle/server/service/snapshots.h"

namespace twinkle::server {

struct SilenceOptions {
  std::chrono::milliseconds park_after{300000};

  static constexpr auto fields() {
    return std::tuple{
        option("park_seconds", &SilenceOptions::park_after, between(0, 86400),
               "seconds without a request or heartbeat of a session after which its runs leave the "
               "engine's memory until their next request, and without a sample of a checkpoint "
               "after which its adapter does until the next, at most a quarter late; counted while "
               "the server is up; 0: never")};
  }
};

class Silence {
 public:
  static constexpr int64_t kChecks = 4;  // in park_after

  // `on_check`: called at each of them.
  Silence(
      Backend& backend, Loop& loop, const Runs& runs, Snapshots& snapshots, SilenceOptions options,
      std::function<void()> on_check = [] {});

  // For the silence that begins from here on, and what is left of one.
  void set(const SilenceOptions& options);

  // A request came, or a heartbeat, of the session of this id, or of what it has made.
  void heard(const std::string& id);

 private:
  void wait();
  void check();
  void park(const Run& run);

  Backend& backend_;
  Loop& loop_;
  const Runs& runs_;
  Snapshots& snapshots_;
  SilenceOptions options_;
  const std::function<void()> on_check_;
  bool waits_ = false;                    // for the next check
  std::set<std::string> heard_;           // sessions, since the last check
  std::map<std::string, int64_t> quiet_;  // by run: checks since its session was heard
};

}  // namespace twinkle::server
