// An engine with a value head: its values and gradients have the same bits however a batch is cut,
// the head learns, is saved and comes back, and what such a model cannot do is refused.
#include <gtest/gtest.h>

#include <algorithm>

#include "twinkle/engine/operations_for_test.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::engine {
namespace {

EngineOptions options(const std::string& model, const char* precision = "no",
                      int64_t budget = 4096) {
  return {.model = {.path = model, .mixed_precision = precision, .value_head = true},
          .scheduling = {.token_budget = budget}};
}

std::vector<Example> unscored() {
  std::vector<Example> out;
  for (const size_t length : {7, 1, 30, 12}) {
    out.push_back(drawn(length, length));
    out.back().labels.clear();
  }
  return out;
}

ForwardBackward value_to_learn() {
  ForwardBackward op{.tenant = "me", .sequences = unscored(), .loss = "LinearLoss"};
  op.loss_options = R"({"num_tokens": 50})";
  for (size_t s = 0; s < op.sequences.size(); ++s) {
    for (size_t t = 0; t < op.sequences[s].input_ids.size(); ++t)
      op.sequences[s].logits_grad.push_back(0.01f * static_cast<float>((7 * t + s) % 11) - 0.04f);
  }
  return op;
}

void train_head(Engine& engine) {
  engine.run<ForwardResult>(value_to_learn());
  engine.run<StepResult>(Step{.tenant = "me", .options = R"({"lr": 0.01})"});
}

std::vector<std::vector<float>> values(Engine& engine) {
  return engine.run<ForwardResult>(Forward{.tenant = "me", .sequences = unscored(), .logits = true})
      .logits;
}

class ValueHead : public testing::TestWithParam<const char*> {
 protected:
  const model::TinyModel model_;
};

TEST_P(ValueHead, BeginsAtZeroLearnsAndIsZeroAgainForTheNextTenant) {
  Engine engine(options(model_.path(), GetParam()));
  engine.run<Done>(Create{.tenant = "me"});
  for (const auto& row : values(engine))
    EXPECT_TRUE(std::ranges::all_of(row, [](float v) { return v == 0; }));
  train_head(engine);
  const auto learnt = values(engine);
  EXPECT_EQ(learnt[2].size(), 30u);
  EXPECT_NE(learnt[2][0], 0);
  engine.run<Done>(Delete{"me"});
  engine.run<Done>(Create{.tenant = "me"});
  EXPECT_EQ(values(engine)[2][0], 0);
}

TEST_P(ValueHead, ValuesAndGradientsHaveTheSameBitsHoweverABatchIsCut) {
  Engine whole(options(model_.path(), GetParam())), cut(options(model_.path(), GetParam(), 8));
  for (Engine* engine : {&whole, &cut}) {
    engine->run<Done>(Create{.tenant = "me"});
    for (int step = 0; step < 3; ++step) train_head(*engine);
    engine->run<ForwardResult>(value_to_learn());
  }
  EXPECT_EQ(values(whole), values(cut));
  EXPECT_EQ(state_of(whole, "me"), state_of(cut, "me"));
}

TEST_P(ValueHead, ASavedOneComesBackIntoANewEngineAndIntoItsOwn) {
  const ScratchDir scratch;
  Engine engine(options(model_.path(), GetParam()));
  engine.run<Done>(Create{.tenant = "me"});
  train_head(engine);
  const auto saved = values(engine);
  const State state = state_of(engine, "me");
  engine.run<SaveResult>(Save{"me", scratch / "critic", true});
  train_head(engine);
  EXPECT_NE(values(engine), saved);
  engine.run<LoadResult>(Load{"me", scratch / "critic", true});
  EXPECT_EQ(values(engine), saved);
  EXPECT_EQ(state_of(engine, "me"), state);
  Engine again(options(scratch / "critic", GetParam()));
  again.run<Done>(Create{.tenant = "me"});
  EXPECT_EQ(values(again), saved);
  train_head(again);
  again.run<Done>(Delete{"me"});
  again.run<Done>(Create{.tenant = "me", .frozen = true});
  EXPECT_EQ(values(again), saved) << "what the files hold";
  expect_error("known: LlamaForCausalLM, and this one with value_head",
               [&] { Engine({.model = {.path = scratch / "critic"}}); });
}

INSTANTIATE_TEST_SUITE_P(Precisions, ValueHead, testing::Values("no", "bf16"));

TEST(ValueHeadRefusals, WhatItCannotDoIsNamed) {
  const model::TinyModel model;
  Engine engine(options(model.path()));
  engine.run<Done>(Create{.tenant = "me"});
  const State before = state_of(engine, "me");
  const auto refused = [&](Operation operation, const char* text) {
    expect_error(text, [&] { engine.submit(std::move(operation)); });
    EXPECT_EQ(state_of(engine, "me"), before) << text;
  };
  refused(work("me"), "engine: sequence 0 has labels, but the model's value head gives them no");
  refused(Sample{"me", {{1}}, {SamplingParams()}}, "engine: sample: the model has a value head");
  refused(Create{.tenant = "you", .lora_json = R"({"r": 4, "target_modules": "all-linear"})"},
          "engine: tenant 'you' is an adapter, which has no value head");
  ForwardBackward wide = value_to_learn();
  wide.sequences[1].logits_grad.assign(131, 0);
  refused(wide,
          "engine: sequence 1: logits_grad has 131 entries, it must have one per token and entry "
          "of the value head (1 x 1)");
  ForwardBackward nothing{.tenant = "me", .sequences = unscored()};
  refused(nothing, "engine: the batch has no label to learn from");
  const ScratchDir scratch;
  Engine policy({.model = {.path = model.path(), .mixed_precision = "no"}});
  policy.run<Done>(Create{.tenant = "me"});
  policy.run<SaveResult>(Save{"me", scratch / "policy"});
  expect_error("has no tensor score.weight",
               [&] { engine.run<LoadResult>(Load{"me", scratch / "policy"}); });
  engine.run<SaveResult>(Save{"me", scratch / "critic"});
  expect_error("is not known; known:",
               [&] { policy.run<LoadResult>(Load{"me", scratch / "critic"}); });
  EXPECT_EQ(state_of(engine, "me"), before);
}

}  // namespace
}  // namespace twinkle::engine
