// The cost until the sampler uses a step's new weights: no copy of the base, no file.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>

#include "twinkle/engine/memory/model_options_for_test.h"
#include "twinkle/engine/operations_for_test.h"
#include "twinkle/kernels/allocation_meter_for_test.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::engine {
namespace {

constexpr int64_t kLargeVocabulary = 40000, kLargeWidth = 48;

// Most of the weights are the embedding, which is the head as well.
JsonObject with_a_large_vocabulary() {
  JsonObject c = model::tiny_config();
  c["vocab_size"] = kLargeVocabulary;
  return c;
}

// Bytes that this process has written to files, pipes and sockets.
int64_t written_bytes() {
  std::ifstream io("/proc/self/io");
  std::string name;
  for (int64_t value = 0; io >> name >> value;) {
    if (name == "wchar:") return value;
  }
  return -1;
}

// The executor of an engine without the engine's thread: this one's allocations are all there are.
class NewWeightsOf : public testing::TestWithParam<std::string> {
 protected:
  NewWeightsOf() {
    executor_.begin();
    executor_.run(
        Create{.tenant = "me", .lora_json = R"({"r": 4, "target_modules": "all-linear"})"},
        nullptr);
  }

  void learn() {
    const Operation op = work("me");
    const Work all{++id_, &op, 0, 2};
    BatchOutcome outcome;
    executor_.run_batch({&all, 1}, nobody_stops_, outcome);
    ASSERT_EQ(outcome.ended.size(), 1u);
    executor_.commit(id_);
  }
  void step() { executor_.run(Step{.tenant = "me", .options = R"({"lr": 0.05})"}, nullptr); }

  float next_logprob() {
    const Sample op{
        .tenant = "me", .prompts = {{5, 6, 7}}, .params = {{.max_tokens = 1, .seed = 4}}};
    executor_.start(++id_, op, {}, {}, nullptr);
    while (executor_.step().empty()) {
    }
    return std::get<SampleResult>(executor_.commit(id_)).completions[0][0].logprobs[0];
  }

  EngineOptions options() const {
    EngineOptions out = small_model(model_.path());
    out.model.mixed_precision = GetParam();
    return out;
  }
  int64_t base_bytes() const {
    return kLargeVocabulary * kLargeWidth * (GetParam() == "no" ? 4 : 2);
  }

  const model::TinyModel model_{with_a_large_vocabulary()};
  DecoderExecutor executor_{options()};
  const std::atomic<bool> nobody_stops_ = false;
  int64_t id_ = 0;
};

TEST_P(NewWeightsOf, AreTheNextTokensWithoutACopyOfTheBaseAndWithoutAFile) {
  learn();
  step();
  const float before = next_logprob();  // the sampler's pages are there from here on
  learn();
  const int64_t written = written_bytes();
  const kernels::AllocationMeter meter;
  step();
  EXPECT_NE(next_logprob(), before);
  EXPECT_GT(meter.peak(), 0);
  EXPECT_LT(meter.peak(), base_bytes() / 4);
  EXPECT_LT(meter.now(), base_bytes() / 16);
  // The adapter alone has 20,000 bytes; torch may warn, once, of what its meter did not see.
  EXPECT_LT(written_bytes() - written, 1000);
  const at::Tensor copy = at::empty({base_bytes()}, at::kChar);
  EXPECT_GE(meter.peak(), base_bytes()) << "a copy would have been seen";
}

INSTANTIATE_TEST_SUITE_P(Precisions, NewWeightsOf, testing::Values("bf16", "no"));

}  // namespace
}  // namespace twinkle::engine
