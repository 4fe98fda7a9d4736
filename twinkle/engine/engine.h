// Runs the operations of many tenants on one decoder. submit() may be called from any thread; one
// thread of the engine's own executes. Operations of one tenant run in the order of their
// submission; forwards and backwards of different tenants that wait at the same time share one
// batch, and give each tenant the bits that it would get alone. An operation that fails changes
// nothing and reports through its future.
#pragma once
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "twinkle/engine/operation.h"

namespace twinkle::engine {

struct EngineOptions {
  std::string model;                     // a Hugging Face model directory, or a .gguf file
  std::string mixed_precision = "bf16";  // "bf16": weights and activations bf16; "no": float32
  int64_t token_budget = 4096;  // tokens of one training batch; larger operations run in several
  int64_t kv_tokens = 32768;    // tokens that the sampler's cache holds
  // Bytes of activations that a training batch keeps for its backward pass; layers beyond them are
  // computed a second time, which costs time and changes no bit. Layers' inputs stay even when they
  // alone exceed it. 0: no limit.
  int64_t activation_bytes = int64_t{8} << 30;
};

struct ModelFacts {
  std::string family, directory, config_json;
  int64_t vocab_size = 0, max_positions = 0, num_layers = 0, num_parameters = 0;
  std::vector<int32_t> eos_ids;
};

class Engine {
 public:
  explicit Engine(const EngineOptions& options);
  ~Engine();  // finishes what runs, fails what waits with kBusy "engine: closed"
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const ModelFacts& facts() const;

  // Forwards, or forwards with their backward, that training batches have taken so far.
  int64_t num_passes() const;
  // Layers that backward passes computed a second time because of activation_bytes.
  int64_t num_recomputed_layers() const;

  // Turns token ids into text, for stop strings; without it `stop` is refused. Set before the first
  // Sample.
  using Decode = std::function<std::string(std::span<const int32_t>)>;
  void set_decode(Decode decode);

  // Checks what can be checked at once (throws), queues the rest.
  std::future<Result> submit(Operation operation);
  // All of them enter the queue together, so that they meet in one batch.
  std::vector<std::future<Result>> submit(std::vector<Operation> operations);

  // submit and wait.
  template <class R>
  R run(Operation operation) {
    return std::get<R>(submit(std::move(operation)).get());
  }

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace twinkle::engine
