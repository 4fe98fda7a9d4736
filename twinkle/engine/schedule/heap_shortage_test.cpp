// Memory runs out on the dispatcher's thread between the executor's calls, at every allocation that
// is made there in turn: one operation fails for each, and the process goes on. The same for
// threads that submit.
#include <thread>

#include "twinkle/base/error_for_test.h"
#include "twinkle/engine/group/door.h"
#include "twinkle/engine/heap_for_test.h"
#include "twinkle/engine/schedule/dispatched_for_test.h"

namespace twinkle::engine {
namespace {

class ShortOfMemory : public NullExecutor {
 public:
  std::atomic<int64_t> after = -1, times = 0;  // from the next call's end on
  std::atomic<int64_t> unused = -1;            // value of `after`, at the last call
  std::atomic<bool> enough = false;            // nothing fails after the next call

  Result run(const Operation& operation, Prepared* prepared) override {
    const Pause pause(*this);
    return NullExecutor::run(operation, prepared);
  }
  void run_batch(std::span<const Work> batch, const std::atomic<bool>& stop,
                 BatchOutcome& outcome) override {
    const Pause pause(*this);
    NullExecutor::run_batch(batch, stop, outcome);
  }
  void start(int64_t id, const Sample& sample, Share share, SampleHooks hooks,
             Prepared* prepared) override {
    const Pause pause(*this);
    NullExecutor::start(id, sample, share, std::move(hooks), prepared);
  }
  std::vector<Ended> step() override {
    const Pause pause(*this);
    return NullExecutor::step();
  }
  Result commit(int64_t id) override {
    const Pause pause(*this);
    return NullExecutor::commit(id);
  }
  void undo(int64_t id) override {
    const Pause pause(*this);
    NullExecutor::undo(id);
  }

 private:
  struct Pause {
    explicit Pause(ShortOfMemory& executor)
        : of(executor), kept(std::exchange(succeeding_allocations, -1)) {
      of.unused = kept;
    }
    ~Pause() {
      const int64_t after = of.after.exchange(-1);
      succeeding_allocations = after >= 0 ? after : kept;
      if (after >= 0) failing_allocations = of.times;
      if (of.enough) succeeding_allocations = -1;
    }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

    ShortOfMemory& of;
    const int64_t kept;
  };
};

struct LiveShortage {
  int64_t unused = -1;  // allocations that did not come to the one that fails
  int failed = 0;
};

// A life of two tenants, in which allocation number `after` and those that follow it fail.
LiveShortage live(int64_t after, int64_t times) {
  ShortOfMemory executor;
  Dispatcher dispatcher({.token_budget = 100, .gather_ms = 0}, executor);
  for (Future& made : dispatcher.submit({Create{"a"}, Create{"b"}})) made.get();
  executor.times = times;
  executor.after = after;
  std::vector<Operation> operations{ZeroGrad{"a"}, pass_of("a", 25), pass_of("b", 3),
                                    Step{"a"},     sampled("b", 3),  pass_of("a", 2),
                                    Create{"new"}, pass_of("b", 1)};
  auto futures = dispatcher.submit(operations);
  LiveShortage out;
  std::map<std::string, std::vector<std::string>> want;
  for (size_t i = 0; i < futures.size(); ++i) {
    auto& state = want[tenant_of(operations[i])];
    try {
      futures[i].get();
      if (std::holds_alternative<Step>(operations[i])) state.push_back("step ");
      if (const auto* op = std::get_if<ForwardBackward>(&operations[i])) {
        for (size_t s = 0; s < op->sequences.size(); ++s)
          state.push_back(std::to_string(futures[i].id) + "/" + std::to_string(s));
      }
    } catch (const std::bad_alloc&) {
      ++out.failed;
    }
  }
  executor.enough = true;
  for (Future& last : dispatcher.submit({ZeroGrad{"a"}})) last.wait();
  out.unused = executor.unused;
  for (const char* tenant : {"a", "b"}) {
    std::vector<std::string> got;
    auto seen = dispatcher.submit({Inspect{tenant}});
    const auto inspected = std::get<InspectResult>(seen[0].get());
    for (const auto& t : inspected.tensors) got.push_back(t.name);
    EXPECT_EQ(got, want[tenant]) << "tenant " << tenant << ", allocation " << after;
  }
  EXPECT_EQ(dispatcher.stats().num_queued, 0);
  return out;
}

TEST(ShortOfHeap, OnTheDispatchersThreadFailsOneOperationForEachAllocationThatFails) {
  for (const int64_t times : {1, 3}) {
    int failed = 0;
    int64_t after = 0;
    for (; after < 1000; ++after) {
      const LiveShortage met = live(after, times);
      ASSERT_LE(met.failed, times) << "allocation " << after;
      failed += met.failed;
      if (met.unused > 0) break;  // beyond the last one
    }
    EXPECT_GT(after, 20);
    EXPECT_LT(after, 1000);
    EXPECT_GT(failed, 10);
  }
}

TEST(ShortOfHeap, OfAThreadThatSubmitsQueuesNothing) {
  NullExecutor executor;
  Dispatcher dispatcher({.token_budget = 100, .gather_ms = 0}, executor);
  for (Future& made : dispatcher.submit({Create{"a"}, Create{"b"}})) made.get();
  int64_t after = 0;
  for (bool done = false; !done && after < 1000; ++after) {
    std::vector<Operation> operations{pass_of("a", 2), pass_of("b", 2), pass_of("new", 1),
                                      Step{"a"}};
    std::vector<Future> futures;
    try {
      const HeapShortage shortage(after, 1);
      futures = dispatcher.submit(std::move(operations));
      done = true;
    } catch (const std::bad_alloc&) {
    }
    if (!done) {
      ASSERT_EQ(dispatcher.stats().num_queued, 0) << after;
      ASSERT_EQ(dispatcher.stats().queued_bytes, 0) << after;
    }
    for (Future& future : futures) future.wait();
  }
  EXPECT_GT(after, 20);
  EXPECT_LT(after, 1000);
  EXPECT_EQ(executor.num_batches, 1);
}

// On this thread an allocation fails after the next all_gather, and `spared` others.
class ThenShort : public mesh::Channel {
 public:
  ThenShort(std::unique_ptr<mesh::Channel> inner, int64_t spared)
      : Channel(inner->rank(), inner->size()), inner_(std::move(inner)), spared_(spared) {}
  std::vector<std::string> all_gather(const std::string& bytes) override {
    std::vector<std::string> out = inner_->all_gather(bytes);
    succeeding_allocations = std::exchange(spared_, -1);
    failing_allocations = 1;
    return out;
  }
  std::string broadcast(std::string bytes, int root) override {
    return inner_->broadcast(std::move(bytes), root);
  }
  void close(const std::string& why) noexcept override { inner_->close(why); }

 private:
  const std::unique_ptr<mesh::Channel> inner_;
  int64_t spared_;
};

// The others have the operation by its number then. False: it was taken.
bool ends_the_group(int64_t spared) {
  auto doors = mesh::thread_channels(2, 10), controls = mesh::thread_channels(2, 10);
  std::vector<Group> groups(2);
  for (size_t r = 0; r < 2; ++r) {
    groups[r].door = std::move(doors[r]);
    groups[r].control = std::move(controls[r]);
  }
  groups[0].door = std::make_unique<ThenShort>(std::move(groups[0].door), spared);
  const Operation operation = Step{.tenant = "a name that is too long for a text's own memory"};
  std::string others;
  std::thread other([&] {
    Door door(groups[1]);
    others = error_of([&] {
      door.enter(operation);
      door.enter(operation);
    });
  });
  Door door(groups[0]);
  bool failed = false;
  try {
    door.enter(operation);
  } catch (const std::bad_alloc&) {
    failed = true;
  }
  succeeding_allocations = -1;
  const std::string own = error_of([&] { door.enter(operation); });
  other.join();
  EXPECT_EQ(own == "no error", !failed) << spared;
  EXPECT_EQ(others == "no error", !failed) << spared << ": " << others;
  return failed;
}

TEST(ShortOfMemoryAtTheDoor, ARankThatCannotTakeWhatAllHaveSentEndsTheGroup) {
  int64_t count = 0;
  while (ends_the_group(count)) ++count;
  EXPECT_GT(count, 5);
}

}  // namespace
}  // namespace twinkle::engine
