// Memory runs out at every allocation of an operation in turn: it ends with an error and has
// changed nothing, or it has done all.
#include <gtest/gtest.h>

#include "twinkle/engine/heap_shortage_for_test.h"
#include "twinkle/engine/memory/model_options_for_test.h"
#include "twinkle/engine/operations_for_test.h"
#include "twinkle/engine/shortage_for_test.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::engine {
namespace {

constexpr const char* kShort = R"({"r": 2, "target_modules": ["q_proj", "down_proj"]})";

// Operations of an adapter's tenant and of one that trains all weights.
class ShortOperations : public testing::TestWithParam<bool> {
 protected:
  ShortOperations() {
    create();
    learn();
    step(0.01);
    learn();  // gradients that wait for a step
    run(Save{"me", folder(), true, "note"});
    saved_ = state();
  }

  void create() { run(Create{.tenant = "me", .lora_json = GetParam() ? "" : kShort, .seed = 3}); }
  void step(double lr) {
    run(Step{.tenant = "me", .options = "{\"lr\": " + std::to_string(lr) + "}"});
  }
  Result run(const Operation& operation) {
    if (const FirstPart first = executor_.first_part(operation); first.rest) return first.rest({});
    const auto prepared = executor_.prepare(operation, {});
    return executor_.run(operation, prepared.get());
  }
  void learn() {
    const Operation operation = work("me");
    const Work all{++id_, &operation, 0, 2};
    BatchOutcome outcome;
    outcome.ended.reserve(1);
    outcome.rewound.reserve(1);
    executor_.run_batch({&all, 1}, false, outcome);
    executor_.commit(id_);
  }
  State state() {
    const auto r = std::get<InspectResult>(run(Inspect{"me"}));
    return {r.weights, r.gradients, r.optimizer, r.step, r.num_tokens};
  }
  std::string folder() const { return scratch_ / "checkpoint"; }

  // `Lack` at each of the operation's allocations: `before` until it succeeds, `after` then.
  // Returns how often it failed.
  template <class Lack>
  int at_each(const Operation& operation, const State& before, const State& after) {
    for (int failed = 0; failed < 1000; ++failed) {
      const auto prepared = executor_.prepare(operation, {});
      try {
        const Lack lack(failed, 1);
        executor_.run(operation, prepared.get());
      } catch (const std::bad_alloc&) {
        EXPECT_EQ(state(), before) << "allocation " << failed;
        if (HasFailure()) return failed;
        continue;
      }
      EXPECT_EQ(state(), after) << "allocation " << failed;
      return failed;
    }
    ADD_FAILURE() << "it failed a thousand times";
    return 0;
  }

  const model::TinyModel model_;
  const ScratchDir scratch_{memory_folder()};
  DecoderExecutor executor_{small_model(model_.path())};
  int64_t id_ = 0;
  State saved_;
};

TEST_P(ShortOperations, ALoadReplacesAllOfATenantOrNothing) {
  for (const bool published : {false, true}) {
    if (published && GetParam()) continue;  // only adapters have versions
    learn();
    step(0.5);
    if (published) run(Publish{"me"});  // the weights are shared: a load takes a copy first
    const State trained = state();
    EXPECT_NE(trained, saved_);
    at_each<HeapShortage>(Load{"me", folder(), true}, trained, saved_);
    step(0.5);
    const State again = state();
    at_each<Shortage>(Load{"me", folder(), true}, again, saved_);
  }
}

TEST_P(ShortOperations, ASaveHoldsItsTenantWholeOrNotAtAll) {
  const std::string other = scratch_ / "other";
  const Operation save = Save{"me", other, true, "note"}, load = Load{"me", other, true};
  Rest rest;
  int failed = 0;
  for (; !rest; ++failed) {
    EXPECT_FALSE(executor_.waits(load)) << "nothing is being written";
    ASSERT_LT(failed, 1000);
    try {
      const HeapShortage lack(failed, 1);
      rest = executor_.first_part(save).rest;
    } catch (const std::bad_alloc&) {
      EXPECT_EQ(state(), saved_) << "allocation " << failed;
    }
  }
  EXPECT_GT(failed, 50);
  EXPECT_TRUE(executor_.waits(load));
  EXPECT_EQ(executor_.waits(Step{"me"}), GetParam()) << "a model is written from where it is";
  if (!GetParam()) step(0.5);
  rest({});
  rest = {};
  EXPECT_FALSE(executor_.waits(load) || executor_.waits(Step{"me"}));
  if (GetParam()) step(0.5);
  run(load);
  EXPECT_EQ(state(), saved_);
}

TEST_P(ShortOperations, AClippedGradientIsClippedWhole) {
  const auto clip = ClipGradNorm{.tenant = "me", .max_grad_norm = 0.01};
  run(clip);
  const State clipped = state();
  EXPECT_NE(clipped, saved_);
  run(Load{"me", folder(), true});
  EXPECT_GT(at_each<HeapShortage>(clip, saved_, clipped), 0);
  run(Load{"me", folder(), true});
  at_each<Shortage>(clip, saved_, clipped);
}

TEST_P(ShortOperations, AStepIsTakenWholeOrNotAtAll) {
  const Step step{.tenant = "me", .options = R"({"lr": 0.1})"};
  run(step);
  const State stepped = state();
  run(Load{"me", folder(), true});
  EXPECT_GT(at_each<HeapShortage>(step, saved_, stepped), 0);
  run(Load{"me", folder(), true});
  at_each<Shortage>(step, saved_, stepped);
}

// Freeing must not need memory, at whichever allocation it fails: a destructor that throws
// ends the process.
TEST_P(ShortOperations, ATenantIsDeletedOrStays) {
  const Operation remove = Delete{"me"};
  const auto prepare = [&] { return executor_.prepare(remove, {}); };
  int failed = 0;
  for (bool done = false; !done && failed < 1000;) {
    const auto prepared = prepare();
    try {
      const HeapShortage shortage(failed, 1);
      executor_.run(remove, prepared.get());
      done = true;
    } catch (const std::bad_alloc&) {
      ++failed;
      EXPECT_EQ(state(), saved_) << "allocation " << failed;
    }
  }
  EXPECT_LT(failed, 1000);
  create();  // it is gone
}

// One that could not begin would run all the same, as nobody's.
TEST_P(ShortOperations, ASampleThatCannotBeginLeavesNothingOfItToTheNext) {
  const Operation operation = Sample{.tenant = "me",
                                     .prompts = {{3, 4, 5}, {6}},
                                     .params = {{.max_tokens = 3,
                                                 .temperature = 0,
                                                 .num_samples = 2,
                                                 .ignore_eos = true,
                                                 .prompt_logprobs = true}}};
  const auto& sample = std::get<Sample>(operation);
  const auto finish = [&] {
    for (int step = 0; step < 100; ++step) {
      for (const Ended& ended : executor_.step()) {
        EXPECT_EQ(ended.id, id_);
        return std::get<SampleResult>(executor_.commit(ended.id));
      }
    }
    ADD_FAILURE() << "it does not end";
    return SampleResult{};
  };
  executor_.start(++id_, sample, {}, {}, nullptr);
  const SampleResult want = finish();
  int failed = 0;
  for (bool done = false; !done && failed < 1000;) {
    try {
      const HeapShortage shortage(failed, 1);
      executor_.start(++id_, sample, {}, {}, nullptr);
      done = true;
    } catch (const std::bad_alloc&) {
      executor_.undo(id_);
      EXPECT_EQ(executor_.newest(), 0) << "allocation " << failed;
      ++failed;
      executor_.start(++id_, sample, {}, {}, nullptr);
    }
    const SampleResult got = finish();
    for (size_t p = 0; p < want.completions.size(); ++p) {
      for (size_t s = 0; s < want.completions[p].size(); ++s)
        ASSERT_EQ(got.completions[p][s].tokens, want.completions[p][s].tokens) << failed;
    }
  }
  EXPECT_GT(failed, 10);
  EXPECT_EQ(executor_.sampling().num_sequences, 0);
}

INSTANTIATE_TEST_SUITE_P(, ShortOperations, testing::Bool(), [](const auto& all_weights) {
  return all_weights.param ? "OfAllWeights" : "OfAnAdapter";
});

}  // namespace
}  // namespace twinkle::engine
