// Tests of an engine where a device's recordings fail, and what it asks of attention there.
#include <gtest/gtest.h>

#include "tests/cuda_emulation/device.h"
#include "twinkle/engine/engine.h"
#include "twinkle/engine/exactness/outcomes_for_test.h"
#include "twinkle/engine/shortage_for_test.h"

namespace twinkle::engine {
namespace {

namespace emulation = kernels::emulation;

class OnEmulatedDevice : public testing::Test {
 protected:
  void SetUp() override {
    options_ = {.model = {.path = model_.path(), .mixed_precision = "no"},
                .sampler = {.kv_tokens = 512}};
    options_.model.device = "cuda";
    options_.scheduling.gather_ms = 0;
  }
  void TearDown() override { emulation::failure_of_recordings().clear(); }

  // The same batch three times: its second pass is recorded, its third replayed.
  static std::vector<std::string> outcomes(Engine& engine) {
    std::vector<std::string> out;
    const auto run = [&](Operation operation) {
      Future f = engine.submit(std::move(operation));
      out.push_back(outcome_of(f));
    };
    run(Create{.tenant = "a", .lora_json = R"({"r": 3, "target_modules": "all-linear"})"});
    for (int i = 0; i < 3; ++i) run(ForwardBackward{.tenant = "a", .sequences = {drawn(1, 5, 41)}});
    Sample sample{.tenant = "a"};
    sample.prompts = {{1, 2, 3}};
    sample.params = {{.max_tokens = 6}};
    run(sample);
    run(Inspect{"a", true});
    return out;
  }

  const model::TinyModel model_{smallest_config()};
  EngineOptions options_;
};

TEST_F(OnEmulatedDevice, RecordingsThatFailAreSaidAndDoneWithout) {
  Engine records(options_);
  const auto want = outcomes(records);
  EXPECT_EQ(records.num_replayed_passes(), 1);
  EXPECT_EQ(records.graph_failure(), "");

  emulation::failure_of_recordings() = "cudaErrorStreamCaptureInvalidated";
  Engine fails(options_);
  EXPECT_EQ(outcomes(fails), want);
  EXPECT_EQ(fails.num_replayed_passes(), 0);
  EXPECT_EQ(fails.graph_failure(), "training is not recorded: cudaErrorStreamCaptureInvalidated");

  // Once is enough: what such a recording has left behind may stay.
  emulation::failure_of_recordings().clear();
  outcomes(fails);
  EXPECT_EQ(fails.num_replayed_passes(), 0);

  emulation::failure_of_recordings() = "out of memory";
  options_.model.train_graphs = false;
  Engine decodes(options_);
  EXPECT_EQ(outcomes(decodes), want);
  EXPECT_EQ(decodes.graph_failure(), "decoding is not recorded: out of memory");
}

// A prompt of one token begins with a step of decoding, and a number of prompts that comes once has
// a place among the graphs of its own.
TEST_F(OnEmulatedDevice, AStepThatFindsNoMemoryLeavesNoEmptyPlaceAmongTheGraphs) {
  options_.sampler.kv_tokens = 4096;
  Engine engine(options_);
  engine.run<Done>(Create{.tenant = "a", .frozen = true});
  const auto sample = [&](size_t num_prompts) {
    Future f = engine.submit(Sample{.tenant = "a",
                                    .prompts = std::vector<std::vector<int32_t>>(num_prompts, {5}),
                                    .params = {{.max_tokens = 1}}});
    return outcome_of(f);
  };
  int num_failures = 0;
  for (size_t i = 0; i < 20; ++i) {
    const Shortage shortage(static_cast<int64_t>(i), 1);
    num_failures += sample(20 + i) == "no memory";
  }
  EXPECT_GT(num_failures, 5);
  const std::string first = sample(1);
  for (size_t i = 2; i < 19; ++i) sample(i);
  EXPECT_EQ(sample(1), first) << "more places are taken than are kept";
}

TEST_F(OnEmulatedDevice, AttentionAddsInAFixedOrderWhereTheEngineIsDeterministic) {
  options_.model.mixed_precision = "bf16";
  for (const bool deterministic : {true, false}) {
    options_.model.deterministic = deterministic;
    emulation::flash_was_deterministic() = !deterministic;
    Engine engine(options_);
    outcomes(engine);
    EXPECT_EQ(emulation::flash_was_deterministic(), deterministic);
  }
}

}  // namespace
}  // namespace twinkle::engine
