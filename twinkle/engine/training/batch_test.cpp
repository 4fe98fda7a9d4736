#include "twinkle/engine/training/batch.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "twinkle/engine/engine.h"
#include "twinkle/engine/execute/check.h"
#include "twinkle/engine/operations_for_test.h"
#include "twinkle/loss/loss.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::engine {
namespace {

std::string refusal_of_batch(const std::vector<Example>& sequences) {
  model::DecoderSpec spec;
  spec.vocab_size = 10;
  spec.max_positions = 4;
  return error_of([&] { check_sequences(sequences, spec); });
}

TEST(Batch, WhatAModelCannotTakeIsNamedWithItsPlace) {
  const Example good{.input_ids = {0, 9}, .labels = {-100, 9}, .weights = {1, 0.5f}};
  EXPECT_EQ(refusal_of_batch({good, {.input_ids = {1, 2, 3, 4}}}), "no error");
  EXPECT_EQ(refusal_of_batch({}), "engine: the batch is empty; give at least one sequence");
  EXPECT_EQ(refusal_of_batch({good, {}}), "engine: sequence 1 is empty");
  EXPECT_EQ(refusal_of_batch({{.input_ids = {1, 2, 3, 4, 5}}}),
            "engine: sequence 0 has 5 tokens, the model's max_position_embeddings is 4; truncate "
            "it");
  EXPECT_EQ(refusal_of_batch({good, {.input_ids = {1, 10}}}),
            "engine: sequence 1: token 10 at position 1 is outside the vocabulary of 10");
  EXPECT_EQ(refusal_of_batch({{.input_ids = {-1}}}),
            "engine: sequence 0: token -1 at position 0 is outside the vocabulary of 10");
  EXPECT_EQ(refusal_of_batch({{.input_ids = {1, 2}, .labels = {1}}}),
            "engine: sequence 0 has 2 tokens but 1 labels");
  EXPECT_EQ(refusal_of_batch({{.input_ids = {1, 2}, .weights = {1, 1, 1}}}),
            "engine: sequence 0 has 2 tokens but 3 weights");
  EXPECT_EQ(refusal_of_batch({{.input_ids = {1, 2}, .extras = {{"advantages", {1}}}}}),
            "engine: sequence 0 has 2 tokens but 1 values of 'advantages'");
  EXPECT_EQ(refusal_of_batch({{.input_ids = {1, 2}, .labels = {1, 2, 3}, .num_targets = 2}}),
            "engine: sequence 0 has 2 tokens of 2 targets but 3 labels");
  EXPECT_EQ(refusal_of_batch({{.input_ids = {1, 2}, .labels = {1, 2, 3, 10}, .num_targets = 2}}),
            "engine: sequence 0: label 10 at position 1 is outside the vocabulary of 10 and is not "
            "-100");
  EXPECT_EQ(refusal_of_batch({{.input_ids = {1}, .num_targets = 0}}),
            "engine: sequence 0: num_targets is 0, it must be at least 1");
  EXPECT_EQ(refusal_of_batch({{.input_ids = {1}, .extras = {{"grad", {1}}}, .num_targets = 2}}),
            "engine: sequence 0 has 2 targets for each token and 'grad', which is one number a "
            "token; leave it out");
  for (const int32_t label : {-1, 10, -101}) {
    EXPECT_EQ(refusal_of_batch({{.input_ids = {1, 2}, .labels = {3, label}}}),
              "engine: sequence 0: label " + std::to_string(label) +
                  " at position 1 is outside the vocabulary of 10 and is not -100");
  }
}

class BatchOnEngine : public testing::Test {
 protected:
  BatchOnEngine() : engine_({.model = {.path = model_.path(), .mixed_precision = "no"}}) {
    engine_.run<Done>(
        Create{.tenant = "me", .lora_json = R"({"r": 4, "target_modules": "all-linear"})"});
  }
  const model::TinyModel model_;
  Engine engine_;
};

TEST_F(BatchOnEngine, IgnoredLabelsAreZeroAndCountForNothing) {
  const Example first{.input_ids = {1, 2, 3}, .labels = {-100, 5, 6}},
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
  const Example s{.input_ids = {1, 2, 3}, .labels = {4, 5, 6}, .weights = {1, 0, 0.5f}};
  const auto logps = engine_.run<ForwardResult>(Forward{.tenant = "me", .sequences = {s}}).logps;
  const auto result = engine_.run<ForwardResult>(ForwardBackward{.tenant = "me", .sequences = {s}});
  EXPECT_EQ(result.logps, logps);
  EXPECT_NEAR(result.loss, -(logps[0][0] + 0.5 * logps[0][2]), 1e-5);
}

// Two sequences with all that a loss reads.
ForwardBackward read_by(const loss::Loss& loss) {
  ForwardBackward out = work("me");
  out.loss = loss.class_name;
  for (Example& s : out.sequences) {
    for (const loss::Extra& extra : loss.extras) {
      if (extra.name == "ref_sums") continue;  // in the place of ref_logps
      auto& values = s.extras[std::string(extra.name)];
      const float least =
          extra.name.starts_with("clip_") ? 0.7f : -0.6f;  // bounds of a ratio are above 0
      for (size_t t = 0; t < (extra.per_sequence ? 1 : s.input_ids.size()); ++t)
        values.push_back(0.25f * static_cast<float>(t % 5) + least);
    }
    s.labels[1] = -100;
  }
  if (loss.extra("desirable")) {  // the second is a reply to another prompt
    out.sequences[0].extras["desirable"] = {1};
    out.sequences[1].extras["desirable"] = {-1};
  }
  if (loss.extra("ref_logps") && loss.extra("advantages"))
    out.loss_options = R"({"beta": 0.1, "entropy_coef": 0.05})";
  return out;
}

TEST_F(BatchOnEngine, AForwardTellsTheValueOfEveryLossBitForBitAndLearnsNothing) {
  for (const loss::Loss& loss : loss::all()) {
    if (loss.of_labels) continue;  // the adapter has no head of labels
    SCOPED_TRACE(loss.class_name);
    const ForwardBackward op = read_by(loss);
    const State before = state_of(engine_, "me");
    const auto told = engine_.run<ForwardResult>(Forward{.tenant = "me",
                                                         .sequences = op.sequences,
                                                         .loss = op.loss,
                                                         .loss_options = op.loss_options});
    EXPECT_EQ(state_of(engine_, "me"), before);
    const auto learned = engine_.run<ForwardResult>(op);
    EXPECT_NE(told.loss, 0);
    EXPECT_TRUE(told == learned) << told.loss << " and " << learned.loss;
    EXPECT_EQ(told.entropies.empty(), op.loss_options.empty() && !loss.extra("entropy_grad"));
    EXPECT_NE(state_of(engine_, "me"), before);
  }
}

TEST_F(BatchOnEngine, ALossThatAForwardCannotTellIsNamed) {
  Forward op{.tenant = "me", .sequences = {drawn(1, 4)}, .loss = "NoSuchLoss"};
  const auto refused = [&] { return error_of([&] { engine_.run<ForwardResult>(op); }); };
  EXPECT_NE(refused().find("unknown loss 'NoSuchLoss'"), std::string::npos);
  op.loss = "CPOLoss";
  EXPECT_NE(refused().find("CPOLoss needs pairs"), std::string::npos);
  op.loss = "ppo";
  EXPECT_EQ(refused(), "loss: ppo needs 'logprobs', pass it with the batch");
  op.loss.clear();
  op.loss_options = "{}";
  EXPECT_EQ(refused(),
            "engine: forward: loss_options is '{}', but there is no loss; name it, or leave them "
            "out");
}

// Three targets of each of four tokens, some of them ignored, twice the same or of no weight.
Example of_three_targets() {
  return {.input_ids = {1, 2, 3, 4},
          .labels = {5, 6, 5, -100, 8, -100, 9, 0, 0, 12, -100, 130},
          .weights = {0.5f, 0.25f, 1, 1, -2, 1, 1, 0, 0, 1, 1, 0.75f},
          .num_targets = 3};
}
// One of the three.
Example column_of(const Example& all, size_t k) {
  Example out{.input_ids = all.input_ids};
  for (size_t t = 0; t < all.input_ids.size(); ++t) {
    out.labels.push_back(all.labels[3 * t + k]);
    out.weights.push_back(all.weights[3 * t + k]);
  }
  return out;
}

TEST_F(BatchOnEngine, SeveralTargetsOfATokenLearnAsEachDoesAlone) {
  const Example all = of_three_targets();
  const auto run = [&](const Example& s) {
    return engine_.run<ForwardResult>(ForwardBackward{.tenant = "me", .sequences = {s}});
  };
  const auto gradients = [&] {
    std::vector<NamedTensor> out;
    for (auto& t : engine_.run<InspectResult>(Inspect{"me", true}).tensors)
      if (t.name.starts_with("grad/")) out.push_back(t);
    engine_.run<Done>(ZeroGrad{"me"});
    return out;
  };
  const auto together = run(all);
  const auto grads = gradients();
  double loss = 0, num_tokens = 0;
  for (size_t k = 0; k < 3; ++k) {
    const auto alone = run(column_of(all, k));
    loss += alone.loss;
    num_tokens += alone.num_tokens;
    for (size_t t = 0; t < 4; ++t) EXPECT_EQ(together.logps[0][3 * t + k], alone.logps[0][t]);
  }
  EXPECT_EQ(together.logps[0].size(), 12u);
  EXPECT_NEAR(together.loss, loss, 1e-9);
  EXPECT_EQ(together.num_tokens, num_tokens);
  const auto sums = gradients();
  ASSERT_EQ(grads.size(), sums.size());
  ASSERT_FALSE(grads.empty());
  for (size_t i = 0; i < grads.size(); ++i) {
    const auto a = at::tensor(grads[i].values), b = at::tensor(sums[i].values);
    EXPECT_LE((a - b).norm().item<float>(), 1e-5f * b.norm().item<float>()) << grads[i].name;
  }
  const auto told = engine_.run<ForwardResult>(
      Forward{.tenant = "me", .sequences = {all}, .loss = "CrossEntropyLoss"});
  EXPECT_TRUE(told == together);
}

TEST_F(BatchOnEngine, SeveralTargetsOfATokenAreOfCrossEntropyAlone) {
  ForwardBackward op{.tenant = "me", .sequences = {of_three_targets()}, .loss = "SimPOLoss"};
  const auto refused = [&] { return error_of([&] { engine_.run<ForwardResult>(op); }); };
  EXPECT_EQ(refused(),
            "engine: sequence 0 has 3 targets for each token, SimPOLoss takes one; "
            "CrossEntropyLoss takes several");
  op.loss = "CrossEntropyLoss";
  op.logits = true;
  EXPECT_EQ(refused(),
            "engine: logits are asked for with 3 targets for each token; they come with one, leave "
            "one of the two out");
}

TEST_F(BatchOnEngine, LogitsAreWhatTheLogProbabilitiesAreOf) {
  const Example s{.input_ids = {1, 2, 3}, .labels = {-100, 5, 6}}, plain{.input_ids = {9}};
  for (const double temperature : {1.0, 0.5}) {
    const auto result = engine_.run<ForwardResult>(Forward{
        .tenant = "me", .sequences = {s, plain}, .temperature = temperature, .logits = true});
    ASSERT_EQ(result.logits.size(), 2u);
    ASSERT_EQ(result.logits[0].size(), 3u * 131);
    ASSERT_EQ(result.logits[1].size(), 131u) << "of a token without a label, too";
    for (const size_t t : {1u, 2u}) {
      const float* row = result.logits[0].data() + 131 * t;
      double sum = 0;
      for (int v = 0; v < 131; ++v) sum += std::exp(static_cast<double>(row[v]));
      EXPECT_NEAR(row[s.labels[t]] - std::log(sum), result.logps[0][t], 1e-5);
    }
  }
  const auto learned = engine_.run<ForwardResult>(
      ForwardBackward{.tenant = "me", .sequences = {s, plain}, .logits = true});
  const auto scored =
      engine_.run<ForwardResult>(Forward{.tenant = "me", .sequences = {s, plain}, .logits = true});
  EXPECT_EQ(learned.logits, scored.logits);
  EXPECT_TRUE(engine_.run<ForwardResult>(Forward{.tenant = "me", .sequences = {s}}).logits.empty());
}

TEST_F(BatchOnEngine, MoreLogitsThanAnOperationMayHaveAreRefused) {
  // 131 x 4 bytes a token: 1 GiB holds 2,049,125 tokens and a bit.
  std::vector<Example> many(8005, {.input_ids = std::vector<int32_t>(256, 1)});
  const std::string text =
      "engine: logits of 2049280 tokens and a vocabulary of 131 take 1025 MiB, one operation may "
      "take 1024; pass fewer sequences, or leave logits out";
  EXPECT_EQ(
      error_of([&] { engine_.submit(Forward{.tenant = "me", .sequences = many, .logits = true}); }),
      text);
  many[0].labels.assign(256, 1);
  EXPECT_EQ(error_of([&] {
              engine_.submit(ForwardBackward{.tenant = "me", .sequences = many, .logits = true});
            }),
            text);
}

TEST_F(BatchOnEngine, AnEmbeddingIsLearnedThroughAlone) {
  std::vector<float> grad(48);
  for (size_t i = 0; i < grad.size(); ++i) grad[i] = static_cast<float>(i % 5) - 2;
  const std::vector<Example> plain{{.input_ids = {1, 2, 3}}, {.input_ids = {7}}};
  const auto embeddings = [&] {
    return engine_
        .run<ForwardResult>(Forward{.tenant = "me", .sequences = plain, .embedding = true})
        .embeddings;
  };
  const auto before = embeddings();
  const auto along = [&](const std::vector<std::vector<float>>& e) {
    double sum = 0;
    for (size_t i = 0; i < grad.size(); ++i) sum += grad[i] * e[0][i];
    return sum;
  };
  ASSERT_EQ(before.size(), 2u);
  ASSERT_EQ(before[0].size(), 48u);
  ForwardBackward op{.tenant = "me", .sequences = plain, .loss = "LinearLoss"};
  op.sequences[0].embedding_grad = grad;
  const auto result = engine_.run<ForwardResult>(op);
  EXPECT_EQ(result.embeddings, before);
  EXPECT_NEAR(result.loss, along(before), 1e-5);
  EXPECT_EQ(result.num_tokens, 1) << "a mean";
  engine_.run<StepResult>(Step{.tenant = "me", .optimizer = "SGD", .options = R"({"lr": 0.01})"});
  EXPECT_LT(along(embeddings()), along(before)) << "the step goes down the gradient";
}

TEST_F(BatchOnEngine, AGradientOfAnEmbeddingThatCannotBeIsRefused) {
  ForwardBackward op{.tenant = "me", .loss = "LinearLoss"};
  op.sequences = {{.input_ids = {1, 2}, .embedding_grad = {1, 2}}};
  const auto refused = [&] { return error_of([&] { engine_.run<ForwardResult>(op); }); };
  EXPECT_EQ(refused(),
            "engine: sequence 0: embedding_grad has 2 entries, the model's hidden_size is 48");
  op.sequences[0].embedding_grad.assign(48, NAN);
  EXPECT_EQ(refused(), "engine: sequence 0: embedding_grad is not finite");
  op.sequences[0].embedding_grad.assign(48, 1);
  op.loss = "CrossEntropyLoss";
  EXPECT_EQ(refused(),
            "engine: loss is 'CrossEntropyLoss' for sequences with an embedding_grad or a "
            "logits_grad, which are of LinearLoss alone");
}

TEST_F(BatchOnEngine, AGradientOfLogitsThatCannotBeIsRefused) {
  ForwardBackward op{.tenant = "me", .loss = "LinearLoss"};
  op.sequences = {{.input_ids = {1, 2}}, {.input_ids = {3}}};
  const auto refused = [&] { return error_of([&] { engine_.run<ForwardResult>(op); }); };
  op.sequences[0].logits_grad.assign(262, 1);
  EXPECT_EQ(refused(),
            "engine: sequence 1: logits_grad has 0 entries, it must have one per token and entry "
            "of the vocabulary (1 x 131), in every sequence or in none");
  op.sequences[1].logits_grad.assign(131, NAN);
  EXPECT_EQ(refused(), "engine: sequence 1: logits_grad is not finite");
  op.sequences[1].logits_grad.assign(131, 1);
  op.sequences[1].labels = {5};
  EXPECT_EQ(refused(), "engine: sequence 1 has a logits_grad and labels; leave the labels out");
  op.sequences[1].labels.clear();
  EXPECT_EQ(refused(), "no error");
  EXPECT_EQ(error_of([&] {
              engine_.run<ForwardResult>(Forward{.tenant = "me", .sequences = {op.sequences[0]}});
            }),
            "engine: a forward takes no embedding_grad and no logits_grad, forward_backward does");
}

TEST_F(BatchOnEngine, LogitsAreLearnedThrough) {
  ForwardBackward op{.tenant = "me", .sequences = {{.input_ids = {1, 2, 3}}}, .loss = "LinearLoss"};
  op.temperature = 0.5;
  auto& grad = op.sequences[0].logits_grad;
  for (int i = 0; i < 3 * 131; ++i) grad.push_back(0.01f * static_cast<float>(i % 7 - 3));
  const auto loss = [&] {
    const auto logits = engine_
                            .run<ForwardResult>(Forward{.tenant = "me",
                                                        .sequences = {{.input_ids = {1, 2, 3}}},
                                                        .temperature = 0.5,
                                                        .logits = true})
                            .logits[0];
    double sum = 0;
    for (size_t i = 0; i < grad.size(); ++i)
      sum += static_cast<double>(grad[i]) * static_cast<double>(logits[i]);
    return sum;
  };
  const double before = loss();
  EXPECT_NEAR(engine_.run<ForwardResult>(op).loss, before, 1e-4);
  const double norm =
      engine_.run<StepResult>(ClipGradNorm{.tenant = "me", .max_grad_norm = 0}).grad_norm;
  constexpr double kRate = 1e-4;
  engine_.run<StepResult>(
      Step{.tenant = "me", .optimizer = "SGD", .options = R"({"lr": 1e-4, "weight_decay": 0})"});
  // Along its gradient a loss falls by the rate times the squared norm.
  EXPECT_NEAR((before - loss()) / (kRate * norm * norm), 1, 0.05);
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
