// The way of an operation to the engine. Those of a tenant's training go in their order, its
// samples in theirs; the first of each waits for the tenant's turn by the rule of
// tenants/wait_list.h, which knows room and rates. An operation that waits is a few words: the rest
// is read from the journal when its turn comes. Used by the service's thread alone.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "twinkle/base/fields/options.h"
#include "twinkle/server/loop.h"
#include "twinkle/server/service/backend.h"
#include "twinkle/server/worker.h"
#include "twinkle/serving/domain/domain.h"
#include "twinkle/serving/domain/task.h"
#include "twinkle/serving/log/log.h"
#include "twinkle/serving/waiting/wait_list.h"

namespace twinkle::server::core {

struct QueueOptions {
  int64_t max_bytes = int64_t{1} << 30;
  std::chrono::milliseconds again{50};

  static constexpr auto fields() {
    using O = QueueOptions;
    return std::tuple{
        option("max_given_bytes_total", &O::max_bytes, between(1, kMostBytes),
               "bytes of requests that the engine has at a time, of which one tenant is given at "
               "most as many as are left; the rest wait on the disk"),
        option("give_again_seconds", &O::again, between(0.001, 60),
               "seconds after which the engine is asked again when it had no room")};
  }
};

// An operation on its way to the engine.
struct Queued {
  std::string id;  // its future's, for who asks why it waits; or empty
  std::string tenant, owner;
  Op op;
  int64_t version = 0;                              // a Sample's
  std::optional<engine::Operation> operation = {};  // empty: it is in the journal
  bool is_rated = true;                             // the owner's rates may hold it
  engine::SampleHooks hooks = {};
  bool is_again = false;                // a start does it again: no limit refuses it
  std::function<void()> on_given = {};  // the engine has just been given it

  // Its way so far.
  WaitList::Head head = {};  // with its cost
  bool is_cancelled = false;
  bool has_room = false;
  int64_t engine_id = 0;  // where the engine has it
  Later<bool> wake = {};  // for whatever it waits for now
};

class Queues {
 public:
  // `threads`: the service's, and one that waits for the disk. `state`: its folder. `quota`: an
  // owner's, now.
  Queues(const QueueOptions& options, Backend& backend, Threads threads, Log& log,
         std::filesystem::path state, std::function<store::Quota(const std::string& owner)> quota);

  // Takes its place in its line before it returns, and ends with the operation.
  Task<engine::Outcome> run(std::shared_ptr<Queued> queued);
  // It ends with the error kConflict, unless it has ended.
  void cancel(Queued& queued);

  // Error kBusy: one that came now would wait.
  void require_room(const Queued& queued);
  int64_t num_waiting() const { return num_waiting_; }
  // After an operation: what it has generated and computed counts for its owner's rates.
  void spend(const std::string& owner, int64_t tokens, double seconds) {
    waiting_.spend(owner, tokens, seconds);
  }
  int64_t num_held() const;  // accepted, and held by their owners' rates
  // The text for the client of an operation that its owner's rates hold, or "".
  std::string why_held(const std::string& future) const;
  bool has_sample(const std::string& tenant, int64_t version) const;

 private:
  using Line = std::list<std::shared_ptr<Queued>>;  // the first has its turn

  WaitList::Head head_of(const Queued& queued) const;
  void go_on();
  void leave_line(const std::shared_ptr<Queued>& queued);
  Task<> wait_for_turn(const std::shared_ptr<Queued>& queued);
  Task<engine::Accepted> accept(const std::shared_ptr<Queued>& queued);
  Task<engine::Accepted> check(const std::shared_ptr<Queued>& queued);
  void make_absolute(engine::Operation& operation) const;

  const QueueOptions options_;
  Backend& backend_;
  Loop& loop_;
  Worker& disk_;
  Log& log_;
  const std::filesystem::path state_;
  const int64_t max_places_, max_held_;  // the engine's, that these share
  std::map<std::string, Line> lines_;
  WaitList waiting_;
  int64_t num_waiting_ = 0;
};

// Does the job on the worker's thread, and ends when it has. Error: what it throws.
template <class Job>
Task<> on(Worker& worker, Loop& loop, Job job, std::string owner = {}) {
  const Later<bool> later;
  worker.run(
      std::move(job), loop,
      [later](const std::exception_ptr& error) {
        if (error)
          later.fail(error);
        else
          later.set(true);
      },
      owner);
  co_await later;
}

// Ends after so many ms.
inline Task<> pause(Loop& loop, std::chrono::milliseconds time) {
  const Later<bool> later;
  loop.after(time, [later] { later.set(true); });
  co_await later;
}

}  // namespace twinkle::server::core
