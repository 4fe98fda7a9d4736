// What the dispatcher asks of whoever holds the model. All calls come from the dispatcher's thread.
// An Operation that is passed lives until its id has ended: committed, undone, or reported with an
// error. Nothing here knows torch: tests put a null model behind it.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "twinkle/engine/operation.h"
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
};

struct Ended {
  int64_t id;
  std::exception_ptr error;  // null: it waits for commit() or undo()
};

struct Rewound {
  int64_t id;
  bool alone;  // it may have to do with an error: it runs again where it can hurt nobody
};

struct BatchOutcome {
  std::vector<Ended> ended;
  std::vector<Rewound> rewound;  // all their sequences are to run once more
  int64_t num_passes = 0;        // over the decoder
};

// What was made ready for an operation before it entered the queue, and goes with it.
struct Prepared {
  virtual ~Prepared() = default;
};

// Is told of memory, in bytes, before it is taken. Error kBusy, kInvalid: there is no room.
using Reserve = std::function<void(int64_t bytes)>;

class Executor {
 public:
  virtual ~Executor() = default;

  // The first call on the dispatcher's thread.
  virtual void begin() {}

  // Whether it changes weights that other tenants read: it waits until nothing reads them.
  virtual bool changes_base(const Operation& operation) = 0;
  // Whether a Forward or ForwardBackward may run in one batch with its tenant's operations before
  // and after it: it needs nothing of them, and takes its sequences once. Any thread.
  virtual bool joins(const Operation& operation) const = 0;
  // The most memory that its result can take, as far as that is known before it runs. Any thread.
  virtual int64_t max_result_bytes(const Operation&) const { return 0; }
  // Called before the operation is queued, on the thread that submits it: reads and checks its
  // files, so that run() need not wait for them. Or null. Errors in a file are thrown by run(), a
  // lack of room is thrown here and refuses the operation. Destroyed before the result can be
  // taken.
  virtual std::shared_ptr<Prepared> prepare(const Operation&, const Reserve&) { return nullptr; }
  // Any but Forward, ForwardBackward and Sample, with what prepare() gave. Throws what went wrong;
  // then nothing has changed.
  virtual Result run(const Operation& operation, Prepared* prepared) = 0;

  // One batch. An operation that fails leaves its tenant as it was before the operation. What is
  // thrown fails all of them; the dispatcher then undoes them, the last one first. `stop` becomes
  // true, at any time, when all of them are cancelled: it may then throw whatever it likes, soon.
  // `outcome` is empty, and has room for all of the batch.
  virtual void run_batch(std::span<const Work> batch, const std::atomic<bool>& stop,
                         BatchOutcome& outcome) = 0;

  // Takes all its requests, or throws what is wrong with one. `share`: of the sampler, among the
  // tenants that have requests waiting.
  virtual void start(int64_t id, const Sample& sample, Share share, SampleHooks hooks) = 0;
  // One token of everything that runs. The Samples that ended. May throw for want of memory; the
  // dispatcher then undoes the newest Sample and calls it again.
  virtual std::vector<Ended> step() = 0;
  // The newest Sample of those that run, 0: none does. Does not throw.
  virtual int64_t newest() const = 0;

  // The result of what ended without an error; from here on it counts. Does not throw.
  virtual Result commit(int64_t id) = 0;
  // Forgets what has begun, ended or not: its tenant is as it was before it.
  virtual void undo(int64_t id) = 0;
};

}  // namespace twinkle::engine
