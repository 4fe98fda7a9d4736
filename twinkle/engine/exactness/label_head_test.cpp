// Adapters with a head of labels in an engine: their logits and gradients have the same bits
// however a batch is cut, whoever else is in it and on however many ranks; they learn, are saved
// and come back; a failure changes nothing; and what they cannot do is refused.
#include <gtest/gtest.h>

#include "twinkle/engine/exactness/outcomes_for_test.h"
#include "twinkle/engine/group/groups_for_test.h"

namespace twinkle::engine {
namespace {

constexpr const char* kRewardModel = R"({"r": 3, "lora_alpha": 6, "target_modules": "all-linear",
                                         "task_type": "SEQ_CLS", "modules_to_save": ["score"],
                                         "num_labels": 1, "lora_dropout": 0.25})";
constexpr const char* kClassifier = R"({"r": 2, "target_modules": ["q_proj", "down_proj"],
                                        "task_type": "SEQ_CLS", "num_labels": 3})";

Create label_tenant(const char* name, const char* config) {
  return {.tenant = name, .lora_json = config, .seed = 5};
}

std::vector<Example> texts(uint64_t seed) {
  std::vector<Example> out;
  for (const size_t length : {7, 1, 20, 12}) {
    out.push_back(drawn(seed + length, length, 41));
    out.back().labels.clear();
  }
  return out;
}

ForwardBackward pairs_to_learn(uint64_t seed = 1) {
  ForwardBackward op{.tenant = "rewards", .sequences = texts(seed), .loss = "RewardLoss"};
  op.loss_options = R"({"center_rewards_coefficient": 0.1})";
  for (Example& s : op.sequences) s.extras["margin"] = {0.5F};
  return op;
}

ForwardBackward classes_to_learn(uint64_t seed = 1) {
  ForwardBackward op{.tenant = "classes", .sequences = texts(seed), .loss = "ClassificationLoss"};
  for (size_t s = 0; s < op.sequences.size(); ++s)
    op.sequences[s].extras["label"] = {static_cast<float>(s % 3)};
  return op;
}

std::vector<std::vector<float>> logits_of(Engine& engine, const char* tenant) {
  return engine.run<ForwardResult>(Forward{.tenant = tenant, .sequences = texts(1)}).label_logits;
}

std::string states(Engine& engine) {
  std::string out;
  for (const char* tenant : {"rewards", "classes"}) {
    auto state = engine.submit(Inspect{tenant, true});
    out += outcome_of(state);
  }
  return out;
}

// Two steps of both, and half a third, of which a rank gives the sequences [first, last).
std::string learnt(Engine& engine, size_t first = 0, size_t last = 4) {
  std::string out;
  for (const Create& op :
       {label_tenant("rewards", kRewardModel), label_tenant("classes", kClassifier)})
    engine.run<Done>(op);
  for (uint64_t step = 0; step < 3; ++step) {
    auto rewards = engine.submit(sliced(pairs_to_learn(step), {first, last})),
         classes = engine.submit(sliced(classes_to_learn(step), {first, last}));
    out += outcome_of(rewards) + outcome_of(classes);
    for (const char* tenant : {"rewards", "classes"}) {
      if (step == 2) continue;
      auto stepped =
          engine.submit(Step{.tenant = tenant, .options = R"({"lr": 0.01})", .max_grad_norm = 0.5});
      out += outcome_of(stepped);
    }
  }
  for (const char* tenant : {"rewards", "classes"}) {
    auto scored =
        engine.submit(sliced(Forward{.tenant = tenant, .sequences = texts(9)}, {first, last}));
    out += outcome_of(scored);
  }
  return out + states(engine);
}

class LabelHeads : public testing::TestWithParam<const char*> {
 protected:
  EngineOptions options(int64_t budget = 4096, int64_t activation_bytes = 0) const {
    return {.model = {.path = model_.path(),
                      .mixed_precision = GetParam(),
                      .activation_bytes = activation_bytes},
            .scheduling = {.token_budget = budget},
            .sampler = {.kv_tokens = 512}};
  }

  const model::TinyModel model_{smallest_config()};
};

TEST_P(LabelHeads, HaveTheSameBitsHoweverABatchIsCutAndOnEveryRank) {
  Engine whole(options());
  const std::string want = learnt(whole), states_of_one = states(whole);
  EXPECT_NE(want.find("score.weight"), want.npos);
  EXPECT_NE(want.find("grad/score.weight"), want.npos);
  for (const int64_t limit : {0, 1}) {
    Engine cut(options(8, limit));
    EXPECT_EQ(learnt(cut), want) << limit;
  }
  on_ranks({.dp = 2}, options(16), [&](Engine& engine, int rank, const mesh::SentBytes&) {
    const auto first = static_cast<size_t>(2 * rank);
    learnt(engine, first, first + 2);
    EXPECT_EQ(states(engine), states_of_one) << "rank " << rank;
  });
}

TEST_P(LabelHeads, ASavedOneComesBackWithItsStateAndIntoAnotherEngine) {
  const ScratchDir scratch;
  Engine engine(options());
  learnt(engine);
  engine.run<SaveResult>(Save{"classes", scratch / "state", true});
  engine.run<SaveResult>(Save{"classes", scratch / "plain"});
  const auto saved = logits_of(engine, "classes");
  EXPECT_EQ(saved[2].size(), 3u);
  const State state = state_of(engine, "classes");
  engine.run<StepResult>(Step{.tenant = "classes", .options = R"({"lr": 0.01})"});
  EXPECT_NE(logits_of(engine, "classes"), saved);
  engine.run<LoadResult>(Load{"classes", scratch / "state", true});
  EXPECT_EQ(logits_of(engine, "classes"), saved);
  EXPECT_EQ(state_of(engine, "classes"), state);
  Engine again(options());
  again.run<Done>(Create{.tenant = "again", .directory = scratch / "plain"});
  EXPECT_EQ(logits_of(again, "again"), saved);
  expect_error("has a head of 3 labels, this one of 1",
               [&] { engine.run<LoadResult>(Load{"rewards", scratch / "plain"}); });
}

TEST_P(LabelHeads, AFailureLeavesGradientsAsTheyWereAndAPublishedVersionStays) {
  const ScratchDir scratch;
  Engine engine(options());
  learnt(engine);
  const State before = state_of(engine, "classes");
  ForwardBackward wrong = classes_to_learn();
  wrong.sequences[3].extras["label"] = {3};
  expect_error("label of sequence 3 is 3", [&] { engine.run<ForwardResult>(wrong); });
  ForwardBackward odd = pairs_to_learn();
  odd.sequences.pop_back();
  const State rewards = state_of(engine, "rewards");
  expect_error("RewardLoss needs pairs", [&] { engine.run<ForwardResult>(odd); });
  EXPECT_EQ(state_of(engine, "classes"), before);
  EXPECT_EQ(state_of(engine, "rewards"), rewards);
  const auto kept = logits_of(engine, "classes");
  const int64_t version = engine.run<PublishResult>(Publish{"classes"}).version;
  engine.run<StepResult>(Step{.tenant = "classes", .options = R"({"lr": 0.1})"});
  engine.run<SaveResult>(Save{.tenant = "classes", .directory = scratch / "v", .version = version});
  engine.run<Done>(Create{.tenant = "v", .directory = scratch / "v"});
  EXPECT_EQ(logits_of(engine, "v"), kept);
  EXPECT_NE(logits_of(engine, "classes"), kept);
}

INSTANTIATE_TEST_SUITE_P(Precisions, LabelHeads, testing::Values("no", "bf16"));

TEST(LabelHeadRefusals, WhatAHeadOfLabelsCannotDoIsNamed) {
  const model::TinyModel model(smallest_config());
  Engine engine({.model = {.path = model.path(), .mixed_precision = "no"}});
  engine.run<Done>(label_tenant("rewards", kRewardModel));
  engine.run<Done>(
      Create{.tenant = "plain", .lora_json = R"({"r": 2, "target_modules": ["q_proj"]})"});
  const State before = state_of(engine, "rewards");
  const auto refused = [&](Operation operation, const std::string& text) {
    const std::string got = error_of([&] { engine.submit(std::move(operation)).get(); });
    EXPECT_NE(got.find(text), got.npos) << got;
    EXPECT_EQ(state_of(engine, "rewards"), before) << text;
  };
  const std::string who = "but the adapter of tenant 'rewards' has a head of labels";
  refused(ForwardBackward{.tenant = "rewards", .sequences = {drawn(1, 6, 41)}},
          "engine: loss is CrossEntropyLoss, " + who);
  refused(Sample{"rewards", {{1}}, {SamplingParams()}},
          "engine: sample: the adapter of tenant 'rewards' has a head of labels, which gives no");
  Forward forward{.tenant = "rewards", .sequences = {drawn(1, 5, 41)}};
  refused(forward, "engine: sequence 0 has labels, weights or gradients of its own, " + who);
  forward.sequences[0].labels.clear();
  Forward base = forward, warm = forward, more = forward;
  base.disable_lora = true;
  refused(base, "engine: forward: disable_lora is true, " + who);
  warm.temperature = 2;
  refused(warm, "engine: temperature is 2, " + who);
  more.embedding = true;
  refused(more, "engine: logits, entropies or embeddings are asked for, " + who);
  ForwardBackward other = pairs_to_learn();
  other.tenant = "plain";
  refused(other,
          "engine: RewardLoss reads what a head of labels gives, and the adapter of tenant "
          "'plain' has none");
  Create unsaid = label_tenant("you", R"({"r": 2, "target_modules": ["q_proj"],
                                          "task_type": "SEQ_CLS"})");
  refused(unsaid, "lora: task_type is \"SEQ_CLS\", but num_labels is missing");
}

}  // namespace
}  // namespace twinkle::engine
