// An operation between its check and its queue: what it needs is reserved, so that a journal can
// write it down in between and its caller be told. Outcomes are told by a call, not by a thread
// that waits.
#pragma once
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <utility>

#include "twinkle/base/fair_share.h"
#include "twinkle/engine/memory/held_bytes.h"
#include "twinkle/engine/protocol/operation.h"
#include "twinkle/engine/protocol/result.h"
#include "twinkle/engine/schedule/executor.h"

namespace twinkle::engine {

class Dispatcher;

inline constexpr const char* kCancelled = "engine: cancelled";  // kConflict, of what cancel() ended

// How an operation ended: done, or failed or cancelled with the error.
struct Outcome {
  int64_t id = 0;
  std::exception_ptr error = {};  // null: it is done
  Result result = {};
  double seconds = 0;  // its share of the executor's time: of a batch by tokens, of a sampling step
                       // by sequences
  int64_t generated = 0;  // tokens of a Sample that was undone, which the result does not tell
  std::shared_ptr<HeldBytes::Room> room = {};  // the result's share of max_queued_bytes, until it
                                               // is dropped
};

// Told once of every operation that was submitted, on the engine's thread in the order of the ends;
// of one that is cancelled before it began, which changed nothing, on the thread that cancels. The
// operation's hooks are gone by then. Must be quick, must not throw and must not call the engine,
// which waits for it.
using OnDone = std::function<void(Outcome)>;

struct Job {
  int64_t id = 0;
  Operation operation = {};
  SampleHooks hooks = {};
  bool streams = false;     // a Sample with a listener
  double seconds = 0;       // Outcome's, so far
  double sampled_from = 0;  // where the dispatcher's time per sequence was when it began
  Share share = {};         // for a Sample that begins
  OnDone on_done = {};
  std::shared_ptr<HeldBytes::Room> room = {};
  std::shared_ptr<Prepared> prepared = {};
  // kTraining, kSampling: it has begun and can be undone; kFinal: it can't be stopped any more.
  enum State { kQueued, kTraining, kSampling, kFinal } state = kQueued;
  bool cancelled = false;
};
using Jobs = std::map<int64_t, Job>;

// Holds a place in the queues of its tenant and of all, and the bytes of operation and result; one
// that is dropped gives them back. Must not outlive its engine.
class Accepted {
 public:
  Accepted(Accepted&& other) noexcept
      : dispatcher_(std::exchange(other.dispatcher_, nullptr)), job_(std::move(other.job_)) {}
  Accepted& operator=(Accepted&&) = delete;
  ~Accepted();

  const Operation& operation() const { return job_.mapped().operation; }
  const std::shared_ptr<HeldBytes::Room>& room() const { return job_.mapped().room; }

 private:
  friend class Dispatcher;
  explicit Accepted(Jobs::node_type job) : job_(std::move(job)) {}

  Dispatcher* dispatcher_ = nullptr;  // in whose queues it has a place; null: none yet, or queued
  Jobs::node_type job_;
};

// The outcome as a future, for callers that wait. A caller that shares it keeps `room` until the
// result is taken.
struct Future : std::future<Result> {
  int64_t id = 0;
  std::shared_ptr<HeldBytes::Room> room = {};  // the result's share of max_queued_bytes

  Result get() {
    const auto until_taken = std::move(room);
    return std::future<Result>::get();
  }
};

}  // namespace twinkle::engine
