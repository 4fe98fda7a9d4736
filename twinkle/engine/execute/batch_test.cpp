#include "twinkle/engine/execute/batch.h"

#include <gtest/gtest.h>

#include <cmath>

#include "twinkle/engine/engine.h"
#include "twinkle/engine/execute/check.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::engine {
namespace {

std::string refusal(const std::vector<Sequence>& sequences) {
  model::DecoderSpec spec;
  spec.vocab_size = 10;
  spec.max_positions = 4;
  return error_of([&] { check_sequences(sequences, spec); });
}

TEST(Batch, WhatAModelCannotTakeIsNamedWithItsPlace) {
  const Sequence good{.input_ids = {0, 9}, .labels = {-100, 9}, .weights = {1, 0.5f}};
  EXPECT_EQ(refusal({good, {.input_ids = {1, 2, 3, 4}}}), "no error");
  EXPECT_EQ(refusal({}), "engine: the batch is empty; give at least one sequence");
  EXPECT_EQ(refusal({good, {}}), "engine: sequence 1 is empty");
  EXPECT_EQ(refusal({{.input_ids = {1, 2, 3, 4, 5}}}),
            "engine: sequence 0 has 5 tokens, the model's max_position_embeddings is 4; truncate "
            "it");
  EXPECT_EQ(refusal({good, {.input_ids = {1, 10}}}),
            "engine: sequence 1: token 10 at position 1 is outside the vocabulary of 10");
  EXPECT_EQ(refusal({{.input_ids = {-1}}}),
            "engine: sequence 0: token -1 at position 0 is outside the vocabulary of 10");
  EXPECT_EQ(refusal({{.input_ids = {1, 2}, .labels = {1}}}),
            "engine: sequence 0 has 2 tokens but 1 labels");
  EXPECT_EQ(refusal({{.input_ids = {1, 2}, .weights = {1, 1, 1}}}),
            "engine: sequence 0 has 2 tokens but 3 weights");
  EXPECT_EQ(refusal({{.input_ids = {1, 2}, .extras = {{"advantages", {1}}}}}),
            "engine: sequence 0 has 2 tokens but 1 values of 'advantages'");
  for (const int32_t label : {-1, 10, -101}) {
    EXPECT_EQ(refusal({{.input_ids = {1, 2}, .labels = {3, label}}}),
              "engine: sequence 0: label " + std::to_string(label) +
                  " at position 1 is outside the vocabulary of 10 and is not -100");
  }
}

class BatchOnEngine : public testing::Test {
 protected:
  BatchOnEngine() : engine_({.model = model_.path(), .mixed_precision = "no"}) {
    engine_.run<Done>(
        Create{.tenant = "me", .lora_json = R"({"r": 4, "target_modules": "all-linear"})"});
  }
  const model::TinyModel model_;
  Engine engine_;
};

TEST_F(BatchOnEngine, IgnoredLabelsAreZeroAndCountForNothing) {
  const Sequence first{.input_ids = {1, 2, 3}, .labels = {-100, 5, 6}},
      second{.input_ids = {4, 5}, .labels = {7, -100}};
  const auto both = engine_.run<ForwardResult>(
      Forward{.tenant = "me", .sequences = {first, second}, .entropy = true});
  EXPECT_EQ(both.num_tokens, 3);
  ASSERT_EQ(both.logps.size(), 2u);
  ASSERT_EQ(both.logps[0].size(), 3u);
  EXPECT_EQ(both.logps[0][0], 0);
  EXPECT_LT(both.logps[0][1], 0);
  EXPECT_LT(both.logps[1][0], 0);
  EXPECT_EQ(both.logps[1][1], 0);
  EXPECT_GT(both.entropies[1][0], 0);
  EXPECT_LE(both.entropies[1][0], std::log(131.0f) + 1e-4f);
  const auto plain =
      engine_.run<ForwardResult>(Forward{.tenant = "me", .sequences = {{.input_ids = {1, 2}}}});
  EXPECT_EQ(plain.num_tokens, 0) << "nothing is scored without labels";
  EXPECT_TRUE(plain.entropies.empty());
}

TEST_F(BatchOnEngine, CrossEntropyIsTheWeightedSumOfTheLogProbabilities) {
  const Sequence s{.input_ids = {1, 2, 3}, .labels = {4, 5, 6}, .weights = {1, 0, 0.5f}};
  const auto logps = engine_.run<ForwardResult>(Forward{.tenant = "me", .sequences = {s}}).logps;
  const auto result = engine_.run<ForwardResult>(ForwardBackward{.tenant = "me", .sequences = {s}});
  EXPECT_EQ(result.logps, logps);
  EXPECT_NEAR(result.loss, -(logps[0][0] + 0.5 * logps[0][2]), 1e-5);
}

TEST_F(BatchOnEngine, ExtrasAreGivenForEverySequenceOrForNone) {
  ForwardBackward op{.tenant = "me", .loss = "LinearLoss"};
  op.sequences.push_back({.input_ids = {1, 2}, .labels = {3, 4}, .extras = {{"grad", {1, 1}}}});
  op.sequences.push_back({.input_ids = {1, 2}, .labels = {3, 4}});
  EXPECT_EQ(error_of([&] { engine_.run<ForwardResult>(op); }),
            "engine: extra 'grad' must be given for every sequence of a forward_backward, or for "
            "none");
  op.sequences.pop_back();
  op.loss = "NoSuchLoss";
  EXPECT_NE(error_of([&] { engine_.run<ForwardResult>(op); }).find("NoSuchLoss"),
            std::string::npos);
}

}  // namespace
}  // namespace twinkle::engine
