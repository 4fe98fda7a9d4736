#include "twinkle/engine/engine.h"

#include <unistd.h>

#include <atomic>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/base/parallel.h"
#include "twinkle/engine/execute/check.h"
#include "twinkle/engine/execute/decoder_executor.h"
#include "twinkle/engine/group/door.h"
#include "twinkle/engine/group/follower.h"
#include "twinkle/engine/group/group_executor.h"
#include "twinkle/mesh/comm.h"

namespace twinkle::engine {
namespace {

// Before the model is read, which may take long.
const EngineOptions& checked(const EngineOptions& options) {
  check_options(options, "engine: ");
  return options;
}

Comms comms_of(const std::optional<Group>& group) {
  if (!group) return {};
  return {dynamic_cast<mesh::Comm&>(*group->data), dynamic_cast<mesh::Comm*>(group->base.get())};
}

// The queue of a group's leader gives each batch as many tokens as all ranks together take.
DispatcherOptions of_group(DispatcherOptions options, const Group& group) {
  options.token_budget *= group.size();
  return options;
}

}  // namespace

struct Engine::State {
  State(const EngineOptions& o, Decoders decoders, std::optional<Group> g)
      : group(std::move(g)), executor(checked(o), std::move(decoders), comms_of(group)) {
    if (!group) {
      dispatcher.emplace(o.scheduling, executor);
      return;
    }
    door.emplace(*group);
    if (group->rank() > 0) {
      follower.emplace(executor, *group);
      return;
    }
    leader.emplace(executor, *group);
    dispatcher.emplace(of_group(o.scheduling, *group), *leader);
  }

  // A fork has the caller's thread alone: it would wait for the engine's for ever.
  void require_own_process() const {
    require(getpid() == process, Code::kInvalid, "engine: made by process ", process,
            ", used in its fork ", getpid(),
            ", where its thread does not run; start workers by spawn");
  }

  // The queue, for callers that no other rank waits for.
  Dispatcher& own_queue() {
    require(!group, Code::kInvalid,
            "engine: check: the ranks of a group submit operations together");
    return *dispatcher;
  }

  // Starts an operation that all ranks have entered; by the leader.
  Future lead(Door::Entry entry) {
    // All ranks have it by its number: an interrupt is seen where its result is waited for.
    const Interruptible not_now(nullptr);
    const int64_t number = entry.number;
    const Part part = entry.joined.part;
    const std::string name = entry.name;
    const auto promise = std::make_shared<std::promise<Result>>();
    Future out{promise->get_future()};
    const auto end = [this, promise, number, part, name](Outcome outcome) {
      leader->tell(number, outcome);
      outcome.room.reset();  // the Future's alone
      if (outcome.error)
        promise->set_exception(named(outcome.error, name));
      else
        promise->set_value(part_of(std::move(outcome.result), part));
    };
    try {
      engine::check(entry.joined.operation, executor.spec());
      check_folder(entry.joined.operation, executor.model_info().directory);
      std::vector<Operation> one;
      one.push_back(std::move(entry.joined.operation));
      std::vector<Accepted> accepted = dispatcher->accept(one);
      leader->entered(number, accepted[0].operation());
      out.room = accepted[0].room();
      out.id = dispatcher->submit(std::move(accepted), {end})[0];
    } catch (...) {
      leader->tell(number, {.error = std::current_exception()});  // the followers wait for it
      throw;
    }
    return out;
  }

  Future submit_together(const Operation& mine, const SampleHooks& hooks) {
    require(!hooks.on_tokens, Code::kInvalid,
            "engine: sample: tokens are listened to on one rank, ", "this is one of ",
            group->size(), "; take them from the result");
    if (leader) return lead(door->enter(mine));
    return {follower->submit(*door, mine)};
  }

  void close() {
    if (door && !closed.exchange(true)) door->close();
    if (dispatcher) dispatcher->close();
    if (leader) leader->close();
    if (follower) follower->join();
  }

  const pid_t process = getpid();
  const std::shared_ptr<const void> life = std::make_shared<char>();
  std::optional<Group> group;  // none: one rank
  DecoderExecutor executor;
  std::optional<Door> door;
  std::optional<GroupExecutor> leader;   // on a group's rank 0
  std::optional<Dispatcher> dispatcher;  // where there is no group, or this leads it
  std::optional<Follower> follower;      // on its other ranks
  std::atomic<bool> closed = false;
};

Engine::Engine(const EngineOptions& options, Decoders decoders, std::optional<Group> group)
    : state_(std::make_unique<State>(options, std::move(decoders), std::move(group))) {}

Engine::~Engine() {
  // A fork has no thread to join, and its parent's files are not its own: all is left where it is.
  if (getpid() != state_->process)
    (void)state_.release();
  else
    state_->close();
}

const ModelInfo& Engine::model_info() const { return state_->executor.model_info(); }

std::weak_ptr<const void> Engine::life() const { return state_->life; }

Accepted Engine::check(Operation&& operation, const SampleHooks& hooks, Beyond beyond) {
  state_->require_own_process();
  engine::check(operation, state_->executor.spec());
  return std::move(state_->own_queue().accept({&operation, 1}, hooks, beyond)[0]);
}

void Engine::validate(const Operation& operation) const {
  state_->require_own_process();
  engine::check(operation, state_->executor.spec());
  state_->own_queue().require_possible(operation);
}

int64_t Engine::bytes_of(const Operation& operation) const {
  return state_->own_queue().bytes_of(operation);
}

int64_t Engine::submit(Accepted accepted, OnDone on_done) {
  state_->require_own_process();
  std::vector<Accepted> one;
  one.push_back(std::move(accepted));
  return state_->own_queue().submit(std::move(one), {std::move(on_done)})[0];
}

std::vector<Future> Engine::submit(std::vector<Operation> operations, const SampleHooks& hooks) {
  state_->require_own_process();
  if (state_->group) {
    std::vector<Future> out;
    for (const Operation& operation : operations)
      out.push_back(state_->submit_together(operation, hooks));
    return out;
  }
  for (const Operation& operation : operations) {
    engine::check(operation, state_->executor.spec());
    check_folder(operation, model_info().directory);
  }
  return state_->dispatcher->submit(std::move(operations), hooks);
}

Future Engine::submit(Operation operation, const SampleHooks& hooks) {
  std::vector<Operation> one;
  one.push_back(std::move(operation));
  return std::move(submit(std::move(one), hooks)[0]);
}

void Engine::close() {
  if (getpid() == state_->process) state_->close();
}

bool Engine::cancel(int64_t id) {
  state_->require_own_process();
  // An operation of several ranks ends on all of them: only the leader can cancel it.
  return state_->dispatcher && state_->dispatcher->cancel(id);
}

ParkingStats Engine::parking() const {
  state_->require_own_process();
  return state_->executor.parking();
}

int64_t Engine::num_recomputed_layers() const { return state_->executor.num_recomputed_layers(); }
int64_t Engine::num_kept_bytes() const { return state_->executor.num_kept_bytes(); }

int64_t Engine::num_replayed_passes() const { return state_->executor.num_replayed_passes(); }

std::string Engine::graph_failure() const { return state_->executor.graph_failure(); }

void Engine::read_weights(const std::string& tenant, WeightsReader reader) {
  const auto place = state_->executor.shelf().put(std::move(reader));
  run<Done>(ReadWeights{tenant, place.number()});
}

void Engine::replace_weights(const std::string& tenant, NewWeights weights) {
  const auto place = state_->executor.shelf().put(std::move(weights));
  run<Done>(ReplaceWeights{tenant, place.number()});
}

void Engine::reset_prefix_cache() { state_->executor.reset_prefix_cache(); }

SamplingStats Engine::sampling() const {
  state_->require_own_process();
  return state_->executor.sampling();
}

Stats Engine::stats() const {
  state_->require_own_process();
  return state_->dispatcher ? state_->dispatcher->stats() : Stats{};
}

}  // namespace twinkle::engine
