// The model's side of the dispatcher. All calls come from the dispatcher's thread, except where
// "any thread" is said. An Operation that is passed lives until its id has ended: committed,
// undone, or reported with an error. Knows no torch: tests put a null model behind it.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "twinkle/engine/protocol/operation.h"
#include "twinkle/engine/protocol/result.h"
#include "twinkle/engine/schedule/hooks.h"
#include "twinkle/engine/schedule/scheduler.h"

namespace twinkle::engine {

// Sequences [first, last) of a Forward or ForwardBackward, in order from one batch to the next. Of
// the operations of one tenant in a batch, in their order, all but the first begin in it, and all
// but the last are completed by it; when there are several, all are.
struct Work {
  int64_t id;
  const Operation* operation;
  size_t first, last;
  int64_t num_tokens = 0;  // tokens of these sequences
};

struct Ended {
  int64_t id;
  std::exception_ptr error;  // null: it waits for commit() or undo()
};

struct Rewound {
  int64_t id;
  bool alone;  // it may have caused an error: it runs again in a batch of its own
};

struct BatchOutcome {
  std::vector<Ended> ended;
  std::vector<Rewound> rewound;  // all their sequences are to run once more
  int64_t num_passes = 0;        // forwards over the decoder
};

// Prepared for an operation before it entered the queue, and owned by it.
struct Prepared {
  virtual ~Prepared() = default;
};

// How ranks write a folder together, each a part of it. As it is: of one rank, which writes all.
struct Writers {
  std::string folder;  // for a rank that is led: where its part goes
  // The leader's: the others begin to write into this folder; waits until they have. Error: of the
  // first rank that could not.
  std::function<void(const std::string& folder)> begin;
  std::function<void()> wait;
};

// The asynchronous remainder of an operation; called once, on the background thread. Holds what it
// needs: it may outlive the Operation. Its copies are destroyed on the dispatcher's thread.
using Rest = std::function<Result(const Writers&)>;

struct FirstPart {
  Rest rest = {};             // empty: nothing has been done
  bool holds_tenant = false;  // its tenant's next operations begin when the rest has ended
};

// Memory that a Sample takes for its tenant's state until it has ended.
struct SampleRoom {
  bool is_needed = false;  // false: it reads the base's weights alone
  bool fits = true;        // beside what is in use
  int64_t bytes = 0;       // in addition to what is in use; 0 where it does not fit
};

// To be called with a number of bytes before they are allocated. Error kBusy, kInvalid: no room.
using Reserve = std::function<void(int64_t bytes)>;

class Executor {
 public:
  virtual ~Executor() = default;

  // The first call on the dispatcher's thread.
  virtual void begin() {}

  // Seconds of a steady clock, by which training and sampling share the time. Any thread.
  virtual double seconds() const {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
  }

  // True: it changes weights that other tenants read, and waits until nothing reads them.
  virtual bool changes_base(const Operation& operation) = 0;
  // True: a Forward or ForwardBackward that may run in one batch with its tenant's operations
  // before and after it: it needs nothing of them, and takes its sequences once. Any thread.
  virtual bool joins(const Operation& operation) const = 0;
  // The most memory that its result can take, and what it holds on the way there, as far as that is
  // known before it runs; `streams`: with a listener for its tokens. Any thread.
  virtual int64_t max_result_bytes(const Operation&, bool /*streams*/) const { return 0; }
  // Called before the operation is queued, on the thread that submits it: reads and checks its
  // files, so that run() need not wait for them. Or null. Errors in a file are thrown by run(), a
  // lack of room is thrown here and refuses the operation. Destroyed before the result can be
  // taken.
  virtual std::shared_ptr<Prepared> prepare(const Operation&, const Reserve&) { return nullptr; }
  // True: it can't run yet: it needs what first_part() of another has left to be done, or would
  // change what that works on.
  virtual bool waits(const Operation&) { return false; }
  // `promised`: bytes of Samples that start before it and have not begun; kNoLimit: one before it
  // waits for room, so that what needs some does not fit.
  virtual SampleRoom sample_room(const Sample&, int64_t /*promised*/) { return {}; }
  // Bytes for the state of tenants whose operations begin in the next batch, beside what is in use,
  // and what one of them takes there.
  virtual int64_t batch_room() { return kNoLimit; }
  virtual int64_t batch_bytes(const std::string& /*tenant*/) { return 0; }
  // Does what an operation needs this thread for, and returns the rest, with whose end the
  // operation ends; others go on meanwhile. Without a rest run() does all of it. When it throws,
  // nothing has changed.
  virtual FirstPart first_part(const Operation&) { return {}; }
  // Any but Forward, ForwardBackward, Sample and what first_part() takes, with what prepare() gave.
  // When it throws, nothing has changed.
  virtual Result run(const Operation& operation, Prepared* prepared) = 0;

  // One batch. An operation that fails leaves its tenant as it was before the operation. When it
  // throws, all of them fail, and the dispatcher undoes them, the last one first. `stop` becomes
  // true, at any time, when all of them are cancelled or the dispatcher closes: it may then throw
  // anything, soon. `outcome` is empty, and has room for all of the batch.
  virtual void run_batch(std::span<const Work> batch, const std::atomic<bool>& stop,
                         BatchOutcome& outcome) = 0;

  // Takes all its requests, or throws the error of one. `share`: of the sampler, among the tenants
  // that have requests waiting; `prepared`: what prepare() gave.
  virtual void start(int64_t id, const Sample& sample, Share share, SampleHooks hooks,
                     Prepared* prepared) = 0;
  // One token of every sequence that runs. The Samples that ended. May throw when memory runs out;
  // the dispatcher then undoes the newest Sample and calls it again.
  virtual std::vector<Ended> step() = 0;
  // The newest Sample of those that run, 0: none does. Does not throw.
  virtual int64_t newest() const = 0;
  // Tokens that a Sample of those that run has so far. Does not throw.
  virtual int64_t num_generated(int64_t /*id*/) const { return 0; }

  // The result of an operation that ended without an error; from here on it counts. Does not throw.
  virtual Result commit(int64_t id) = 0;
  // Forgets an operation that has begun, ended or not: its tenant is as it was before it. Nothing
  // for an id that it does not know. Does not throw: it may be a shortage of memory that is undone.
  virtual void undo(int64_t id) = 0;
};

}  // namespace twinkle::engine
