#include "twinkle/engine/engine.h"

#include <unistd.h>

#include "twinkle/base/error.h"
#include "twinkle/engine/execute/check.h"
#include "twinkle/engine/execute/decoder_executor.h"

namespace twinkle::engine {
namespace {

// Before the model is read, which may take long.
const EngineOptions& checked(const EngineOptions& options) {
  check_options(options, "engine: ");
  return options;
}

}  // namespace

struct Engine::State {
  State(const EngineOptions& o, Decoders decoders)
      : executor(checked(o), std::move(decoders)), dispatcher(o.scheduling, executor) {}

  // A fork has the caller's thread alone: it would wait for the engine's for ever.
  void require_own_process() const {
    require(getpid() == process, Code::kInvalid, "engine: made by process ", process,
            ", used in its fork ", getpid(),
            ", where its thread does not run; start workers by spawn");
  }

  const pid_t process = getpid();
  DecoderExecutor executor;
  Dispatcher dispatcher;
};

Engine::Engine(const EngineOptions& options, Decoders decoders)
    : state_(std::make_unique<State>(options, std::move(decoders))) {}

Engine::~Engine() {
  // A fork has no thread to join, and its parent's files are not its own: all is left where it is.
  if (getpid() != state_->process) (void)state_.release();
}

const ModelInfo& Engine::model_info() const { return state_->executor.model_info(); }

Accepted Engine::check(Operation operation, const SampleHooks& hooks, Beyond beyond) {
  state_->require_own_process();
  engine::check(operation, state_->executor.spec());
  std::vector<Operation> one;
  one.push_back(std::move(operation));
  return std::move(state_->dispatcher.accept(std::move(one), hooks, beyond)[0]);
}

void Engine::validate(const Operation& operation) const {
  state_->require_own_process();
  engine::check(operation, state_->executor.spec());
  state_->dispatcher.require_possible(operation);
}

int64_t Engine::submit(Accepted accepted, OnDone on_done) {
  state_->require_own_process();
  std::vector<Accepted> one;
  one.push_back(std::move(accepted));
  return state_->dispatcher.submit(std::move(one), {std::move(on_done)})[0];
}

std::vector<Future> Engine::submit(std::vector<Operation> operations, const SampleHooks& hooks) {
  state_->require_own_process();
  for (const Operation& operation : operations) {
    engine::check(operation, state_->executor.spec());
    check_folder(operation, model_info().directory);
  }
  return state_->dispatcher.submit(std::move(operations), hooks);
}

Future Engine::submit(Operation operation, const SampleHooks& hooks) {
  std::vector<Operation> one;
  one.push_back(std::move(operation));
  return std::move(submit(std::move(one), hooks)[0]);
}

void Engine::close() {
  if (getpid() == state_->process) state_->dispatcher.close();
}

bool Engine::cancel(int64_t id) {
  state_->require_own_process();
  return state_->dispatcher.cancel(id);
}

ParkingStats Engine::parking() const {
  state_->require_own_process();
  return state_->executor.parking();
}

int64_t Engine::num_recomputed_layers() const { return state_->executor.num_recomputed_layers(); }
int64_t Engine::num_kept_bytes() const { return state_->executor.num_kept_bytes(); }

int64_t Engine::num_replayed_passes() const { return state_->executor.num_replayed_passes(); }

std::string Engine::graph_failure() const { return state_->executor.graph_failure(); }

void Engine::reset_prefix_cache() { state_->executor.reset_prefix_cache(); }

SamplingStats Engine::sampling() const {
  state_->require_own_process();
  return state_->executor.sampling();
}

Stats Engine::stats() const {
  state_->require_own_process();
  return state_->dispatcher.stats();
}

}  // namespace twinkle::engine
