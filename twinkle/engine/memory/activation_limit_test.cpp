// Limits on memory may not change any number.
#include <gtest/gtest.h>

#include "twinkle/engine/engine.h"
#include "twinkle/engine/operations_for_test.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::engine {
namespace {

TEST(ActivationLimit, GradientsWithDropoutHaveTheSameBitsForEveryLimit) {
  const model::TinyModel model;
  struct Numbers {
    uint64_t gradients, weights;
    int64_t recomputed;
  };
  const auto train = [&](const std::string& precision, int64_t limit) {
    Engine engine(
        {.model = {.path = model.path(), .mixed_precision = precision, .activation_bytes = limit}});
    for (const std::string name : {"a", "b"}) {
      engine.run<Done>(
          Create{.tenant = name,
                 .lora_json = R"({"r": 3, "target_modules": "all-linear", "lora_dropout": 0.3})"});
    }
    Numbers out{};
    for (int step = 0; step < 2; ++step) {
      auto futures = engine.submit(std::vector<Operation>{
          ForwardBackward{.tenant = "a", .sequences = {drawn(1, 30), drawn(2, 7)}},
          ForwardBackward{.tenant = "b", .sequences = {drawn(3, 12)}}});
      for (auto& f : futures) f.get();
      out.gradients = engine.run<InspectResult>(Inspect{"a"}).gradients;
      engine.run<StepResult>(Step{.tenant = "a", .options = R"({"lr": 0.05})"});
    }
    out.weights = engine.run<InspectResult>(Inspect{"a"}).weights;
    out.recomputed = engine.num_recomputed_layers();
    return out;
  };
  for (const std::string precision : {"bf16", "no"}) {
    const Numbers want = train(precision, 0);
    EXPECT_EQ(want.recomputed, 0);
    const int64_t inputs = 4 * 49 * 48 * (precision == "bf16" ? 2 : 4);
    for (const int64_t limit : {int64_t{1}, 2 * inputs}) {
      const Numbers got = train(precision, limit);
      EXPECT_GT(got.recomputed, 0) << limit;
      EXPECT_EQ(got.gradients, want.gradients) << precision << limit;
      EXPECT_EQ(got.weights, want.weights) << precision << limit;
    }
  }
}

}  // namespace
}  // namespace twinkle::engine
