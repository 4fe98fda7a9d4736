// Runs the operations of many tenants on one decoder, training and sampling side by side. submit()
// and cancel() may be called from any thread; one thread of the engine's own executes. Operations
// of one tenant begin in the order of their submission, each when the one before it has ended, but
// a Sample, which goes on with the weights that it began with; those of different tenants share
// batches and sampling steps, and give each tenant the bits that it would get alone. An operation
// that fails changes nothing and tells why. docs/decisions/0005-scheduler.md says
// who runs when.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "twinkle/engine/execute/model_info.h"
#include "twinkle/engine/execute/sampling_stats.h"
#include "twinkle/engine/group/group.h"
#include "twinkle/engine/memory/parking_stats.h"
#include "twinkle/engine/options.h"
#include "twinkle/engine/protocol/operation.h"
#include "twinkle/engine/schedule/dispatcher.h"
#include "twinkle/engine/weights/shelf.h"

namespace twinkle::engine {

class Engine {
 public:
  // `decoders` open the Samples' tokenizers; without, stop strings are refused. Error kInvalid: an
  // option outside its limits; kInternal: deterministic, and matrix products depend on the batch.
  // `group`: of ranks that run this engine together, each with the same options. Every rank submits
  // the same operations in the same order, but for the sequences of a Forward or ForwardBackward
  // and the prompts of a Sample: those of all are one operation's, and each gets its own part of
  // the result. Token budgets are each rank's; folders are the same on all ranks. check(), hooks
  // and full-parameter training are refused.
  explicit Engine(const EngineOptions& options, Decoders decoders = {},
                  std::optional<Group> group = {});
  // Closes it. In a fork, where submit, cancel and stats raise kInvalid, it ends at once and leaves
  // all to the parent.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const ModelInfo& model_info() const;
  // Unique to this engine, whatever another's address; expires with it.
  std::weak_ptr<const void> life() const;

  // Checks what can be checked at once, and takes a place in the queue and memory. Waits for the
  // disk only where the operation reads a checkpoint: a Save looks at its folder when it writes.
  // `hooks` go with a Sample. An error leaves the operation as it is, so that it can be offered
  // again. Error kInvalid: what check finds, or the operation and its result take more than
  // max_queued_bytes alone, and that is refused; kBusy: the tenant's queue, or that of all, is
  // full, in operations or bytes.
  Accepted check(Operation&& operation, const SampleHooks& hooks = {},
                 Beyond beyond = Beyond::kRefused);
  // Error kInvalid where check would refuse the operation however much room there was, and whatever
  // its files hold. Never waits for the disk.
  void validate(const Operation& operation) const;
  // That max_queued_bytes counts of it and of its result, as far as is known without its files.
  int64_t bytes_of(const Operation& operation) const;
  // Queues what was checked, and returns its id; operations of one tenant in the order of these
  // calls. Error kBusy: closed; then nothing is told.
  int64_t submit(Accepted accepted, OnDone on_done);
  // Both at once, with a future; a Save's folder is looked at first, too.
  Future submit(Operation operation, const SampleHooks& hooks = {});
  // All of them enter the queue together, so that they meet in one batch.
  std::vector<Future> submit(std::vector<Operation> operations, const SampleHooks& hooks = {});
  // True: the operation's outcome is kConflict "engine: cancelled", and its tenant is as if
  // it had never been. A training batch stops at its next layer if all its operations are
  // cancelled, a Sample at its next step; otherwise the batch goes on, and the operation is dropped
  // at its end. False: it has ended, or can't be stopped any more; the outcome is its result. Of a
  // group rank 0 alone can cancel, and to the others it is kInternal "rank 0 has cancelled it".
  bool cancel(int64_t id);

  // Calls `reader` on the engine's thread with the tenant's weights, at the call's place in the
  // tenant's order, and returns when it has. Nothing else runs meanwhile. Of a group on every rank.
  // Error: what it throws, and of any operation.
  void read_weights(const std::string& tenant, WeightsReader reader);
  // Puts `weights` in the place of the tenant's, and of the base model's where some are given, and
  // returns when the switch has been made: see ReplaceWeights. The engine keeps the memory of the
  // base's, where it can. Of a group on every rank, each with its own.
  void replace_weights(const std::string& tenant, NewWeights weights);

  // Samples that are submitted from here on share no keys and values with earlier ones. (With other
  // weights they never do: this is for measuring, and to free the pages.)
  void reset_prefix_cache();

  Stats stats() const;  // counts of scheduling, which a group's leader does
  SamplingStats sampling() const;
  // Forwards over the decoder, with their backward or without, that training batches have taken so
  // far. A loss of the whole operation takes each of its sequences once, or, where activation_bytes
  // does not hold them, twice.
  int64_t num_passes() const { return stats().num_passes; }
  // Layers that backward passes computed a second time because of activation_bytes.
  int64_t num_recomputed_layers() const;
  // Bytes of activations that operations keep from batch to batch, for losses of the whole.
  int64_t num_kept_bytes() const;
  // Training passes that a device took as recorded graphs.
  int64_t num_replayed_passes() const;
  // Why a device's passes or steps are recorded no more: the text of the recording that failed.
  std::string graph_failure() const;
  // Parking statistics.
  ParkingStats parking() const;

  // Stops what runs, a batch at its next layer and a Sample at its next step. That, what waits and
  // what comes fail with kBusy "engine: closed". Nothing in a fork.
  void close();

  // submit and wait.
  template <class R>
  R run(Operation operation, const SampleHooks& hooks = {}) {
    return std::get<R>(submit(std::move(operation), hooks).get());
  }

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace twinkle::engine
