// Runs the operations of many tenants on one decoder, training and sampling side by side. submit()
// and cancel() may be called from any thread; one thread of the engine's own executes. Operations
// of one tenant begin in the order of their submission, each when the one before it has ended, but
// a Sample, which goes on with the weights that it began with; those of different tenants share
// batches and sampling steps, and give each tenant the bits that it would get alone. An operation
// that fails changes nothing and tells why. docs/decisions/0005-scheduler.md says
// who runs when.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "twinkle/engine/execute/model_info.h"
#include "twinkle/engine/execute/sampling_stats.h"
#include "twinkle/engine/memory/parking_stats.h"
#include "twinkle/engine/protocol/operation.h"
#include "twinkle/engine/schedule/dispatcher.h"

namespace twinkle::engine {

struct EngineOptions {
  std::string model;                     // a Hugging Face model directory, or a .gguf file
  std::string mixed_precision = "bf16";  // "bf16": weights and activations bf16; "no": float32
  // Device of the model and of all computation: "cpu", or "cuda" or "cuda:1" where the build has
  // CUDA kernels and the machine such a device. Error kInvalid elsewhere.
  std::string device = "cpu";
  // A head of one row and a bias replaces the vocabulary's: the logits of a position are one
  // number, its value. All weights are trained; nothing is sampled and no label scored. The head is
  // that of a token or sequence classifier with one label, and zero for a causal model's folder.
  bool value_head = false;
  int64_t token_budget = 4096;  // tokens of one training batch; larger operations take several
  int64_t kv_tokens = 32768;    // tokens that the sampler's cache holds
  // Bytes of activations that a training batch keeps for its backward pass; layers beyond them are
  // computed a second time, which costs time and changes no bit. Layers' inputs stay even when they
  // alone exceed it. 0: no limit.
  int64_t activation_bytes = int64_t{8} << 30;
  int64_t max_sequences = 64;    // that are sampled at a time; more delay each other
  int64_t prefill_tokens = 512;  // prompt tokens of one sampling step; more delay those that decode
  double sampling_share = 0.5;   // of the time, while training waits too; above 0, below 1
  // The most, in ms, that a batch waits for tenants of the last one that have nothing queued, so
  // that clients that wait for each result share the next batch too. 0 to 1000; 0: never.
  double gather_ms = 1.0;
  int64_t max_queued = 1024;         // operations of one tenant that have not ended
  int64_t max_queued_total = 16384;  // of all tenants
  // Bytes of memory that operations of one tenant which have not ended, and results (and streamed
  // tokens) that were neither taken nor dropped, may hold; and those of all tenants. A result
  // counts with the most that it can take until it is there.
  int64_t max_queued_bytes = int64_t{4} << 30;
  int64_t max_queued_bytes_total = int64_t{8} << 30;
  // Bytes that all adapters' state may take in memory; beyond them tenants that rest wait in files
  // of park_directory and come back, bit for bit, with their next operation, which takes the time
  // of reading them. 0: no limit, nothing is parked.
  int64_t resident_bytes = 0;
  std::string park_directory;  // a folder of the engine's own is made there, and goes with it
  // Batch invariance: a tenant's numbers have the same bits in any batch. The engine tests its
  // matrix products at the start, and refuses (kInternal) if they depend on the batch; false skips
  // the test, and the cutting of the library's products into parts where it takes those.
  bool deterministic = true;
  // Steps of decoding on a device are recorded as graphs and replayed; changes no number.
  bool decode_graphs = true;
  // Training passes on a device whose sequences' lengths and owners come again are recorded as
  // graphs and replayed; changes no number. Recordings hold at most activation_bytes of
  // activations, in addition to those of a pass that is not recorded.
  bool train_graphs = true;

  static constexpr auto fields() {
    return std::tuple{field(1, "model", &EngineOptions::model),
                      field(2, "mixed_precision", &EngineOptions::mixed_precision),
                      field(3, "device", &EngineOptions::device),
                      field(4, "value_head", &EngineOptions::value_head),
                      field(5, "token_budget", &EngineOptions::token_budget),
                      field(6, "kv_tokens", &EngineOptions::kv_tokens),
                      field(7, "activation_bytes", &EngineOptions::activation_bytes),
                      field(8, "max_sequences", &EngineOptions::max_sequences),
                      field(9, "prefill_tokens", &EngineOptions::prefill_tokens),
                      field(10, "sampling_share", &EngineOptions::sampling_share),
                      field(11, "gather_ms", &EngineOptions::gather_ms),
                      field(12, "max_queued", &EngineOptions::max_queued),
                      field(13, "max_queued_total", &EngineOptions::max_queued_total),
                      field(14, "max_queued_bytes", &EngineOptions::max_queued_bytes),
                      field(15, "max_queued_bytes_total", &EngineOptions::max_queued_bytes_total),
                      field(16, "resident_bytes", &EngineOptions::resident_bytes),
                      field(17, "park_directory", &EngineOptions::park_directory),
                      field(18, "deterministic", &EngineOptions::deterministic),
                      field(19, "decode_graphs", &EngineOptions::decode_graphs),
                      field(20, "train_graphs", &EngineOptions::train_graphs)};
  }
};

class Engine {
 public:
  // `decoders` open the Samples' tokenizers; without, stop strings are refused.
  explicit Engine(const EngineOptions& options, Decoders decoders = {});
  // Closes it. In a fork, where submit, cancel and stats raise kInvalid, it ends at once and leaves
  // all to the parent.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const ModelInfo& model_info() const;

  // Checks what can be checked at once, and takes a place in the queue and memory. `hooks` go with
  // a Sample. Error kInvalid: what check finds, or the operation and its result take more than
  // max_queued_bytes alone; kBusy: the tenant's queue, or that of all, is full, in operations or
  // bytes.
  Accepted check(Operation operation, const SampleHooks& hooks = {});
  // Error kInvalid where check would refuse the operation however much room there was.
  void validate(const Operation& operation) const;
  // Queues what was checked, and returns its id; operations of one tenant in the order of these
  // calls. Error kBusy: closed; then nothing is told.
  int64_t submit(Accepted accepted, OnDone on_done);
  // Both at once, with a future.
  Future submit(Operation operation, const SampleHooks& hooks = {});
  // All of them enter the queue together, so that they meet in one batch.
  std::vector<Future> submit(std::vector<Operation> operations, const SampleHooks& hooks = {});
  // True: the operation's outcome is kConflict "engine: cancelled", and its tenant is as if
  // it had never been. A training batch stops at its next layer if all its operations are
  // cancelled, a Sample at its next step; otherwise the batch goes on, and the operation is dropped
  // at its end. False: it has ended, or can't be stopped any more; the outcome is its result.
  bool cancel(int64_t id);

  // Samples that are submitted from here on share no keys and values with earlier ones. (With other
  // weights they never do: this is for measuring, and to free the pages.)
  void reset_prefix_cache();

  Stats stats() const;
  SamplingStats sampling() const;
  // Forwards, or forwards with their backward, that training batches have taken so far.
  int64_t num_passes() const { return stats().num_passes; }
  // Layers that backward passes computed a second time because of activation_bytes.
  int64_t num_recomputed_layers() const;
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
