// Training of all weights over several ranks: what it gives next to one rank, and what a rank
// sends.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "twinkle/base/error_for_test.h"
#include "twinkle/engine/exactness/all_weights_for_test.h"
#include "twinkle/engine/exactness/sent_for_test.h"
#include "twinkle/model/tiny_families.h"

namespace twinkle::engine {
namespace {

// Two steps of two batches each, clipped, one of momentum, and what is left behind it.
void train_rank(Rank& rank) {
  rank.create();
  for (uint64_t i = 0; i < 2; ++i) {
    rank.learn(2 * i);
    rank.learn(2 * i + 1);
    rank.step({.options = R"({"lr": 1e-3, "eps": 1e-5})", .max_grad_norm = 0.5});
  }
  rank.score(9);
  rank.learn(4);
  rank.clip(0.3, 2);
  const Step sgd{.optimizer = "SGD", .options = R"({"lr": 0.05, "momentum": 0.9})"};
  rank.step(sgd);
  rank.learn(5);
  rank.clip(0.3, std::numeric_limits<double>::infinity());
  rank.step(sgd);
  rank.learn(6);
  rank.run(ZeroGrad{"a"});
  rank.learn(7);
  rank.inspect();
  rank.sample();
}

void expect_near(const std::vector<float>& a, const std::vector<float>& b, const std::string& of) {
  ASSERT_EQ(a.size(), b.size()) << of;
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], b[i], 1e-4F * std::max(1.0F, std::abs(b[i]))) << of << ' ' << i;
}

void expect_near(const std::vector<Told>& got, const Told& want) {
  std::vector<std::vector<float>> logps;  // those of a rank's sequences follow the rank before's
  for (const Told& told : got) {
    ASSERT_EQ(told.numbers.size(), want.numbers.size());
    for (size_t i = 0; i < want.numbers.size(); ++i)
      EXPECT_NEAR(told.numbers[i], want.numbers[i], 1e-4 * std::max(1.0, std::abs(want.numbers[i])))
          << i;
    ASSERT_EQ(told.tensors.size(), want.tensors.size());
    for (size_t i = 0; i < want.tensors.size(); ++i) {
      EXPECT_EQ(told.tensors[i].name, want.tensors[i].name);
      EXPECT_EQ(told.tensors[i].shape, want.tensors[i].shape);
      expect_near(told.tensors[i].values, want.tensors[i].values, want.tensors[i].name);
    }
    EXPECT_EQ(told.tokens, got[0].tokens);
    EXPECT_EQ(told.tensors, got[0].tensors) << "another rank has other bits";
  }
  const size_t num_calls = want.logps.size() / kSequences;
  for (size_t call = 0; call < num_calls; ++call) {
    for (const Told& told : got) {
      const size_t n = told.logps.size() / num_calls;
      logps.insert(logps.end(), told.logps.begin() + static_cast<ptrdiff_t>(call * n),
                   told.logps.begin() + static_cast<ptrdiff_t>((call + 1) * n));
    }
  }
  ASSERT_EQ(logps.size(), want.logps.size());
  for (size_t i = 0; i < logps.size(); ++i) expect_near(logps[i], want.logps[i], "logps");
}

class AllWeights : public testing::TestWithParam<Mesh> {};

TEST_P(AllWeights, AreTrainedWithin1e4OfOneRankAndTheSameBitsAgain) {
  for (const std::string family : {"llama", "qwen2", "qwen3"}) {
    for (const bool tied : {true, false}) {
      SCOPED_TRACE(family + (tied ? " tied" : ""));
      const model::TinyModel model(config_of(family, tied));
      const EngineOptions options = in_float32(model);
      const Told one = on_mesh({1, 1}, options, train_rank)[0];
      const std::vector<Told> got = on_mesh(GetParam(), options, train_rank);
      expect_near(got, one);
      if (testing::Test::HasFailure()) return;
      if (family != "llama") continue;
      const std::vector<Told> again = on_mesh(GetParam(), options, train_rank);
      for (size_t r = 0; r < got.size(); ++r) EXPECT_EQ(again[r].bits, got[r].bits) << r;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, AllWeights,
                         testing::Values(Mesh{2, 1}, Mesh{3, 1}, Mesh{4, 1}, Mesh{1, 2}, Mesh{1, 4},
                                         Mesh{2, 2}, Mesh{2, 4}, Mesh{1, 2, 8'000},
                                         Mesh{2, 2, int64_t{1} << 40}));

// Gradients that are given: of each sequence's logits, one a token, or of its embedding.
ForwardBackward linear(uint64_t seed, size_t width) {
  ForwardBackward out = batch(seed);
  out.loss = "LinearLoss";
  out.loss_options = R"({"num_tokens": 50})";
  for (Example& s : out.sequences) {
    s.labels.clear();
    auto& grad = width == 1 ? s.logits_grad : s.embedding_grad;
    for (size_t i = 0; i < (width == 1 ? s.input_ids.size() : width); ++i)
      grad.push_back(0.01F * static_cast<float>((7 * i + seed) % 11) - 0.04F);
  }
  return out;
}

// Through embeddings a head that is not tied has no gradient: it is left alone, without decay.
TEST(AllWeightsOf, AValueHeadAndWhatHasNoGradientAreTrainedAsOnOneRank) {
  const model::TinyModel model(config_of("llama", false));
  for (const bool value_head : {true, false}) {
    const EngineOptions options{
        .model = {.path = model.path(), .mixed_precision = "no", .value_head = value_head}};
    const auto life = [&](Rank& rank) {
      rank.create();
      for (uint64_t i = 0; i < 2; ++i) {
        rank.learn(linear(i, value_head ? 1 : 16));
        rank.step({.options = R"({"lr": 1e-3, "eps": 1e-5, "weight_decay": 0.5})"});
      }
      rank.learn(linear(3, value_head ? 1 : 16));
      rank.inspect();
    };
    const Told one = on_mesh({1, 1}, options, life)[0];
    EXPECT_EQ(
        std::ranges::count(one.tensors, std::string("grad/lm_head.weight"), &NamedTensor::name), 0);
    for (const Mesh& mesh : {Mesh{2, 1}, Mesh{1, 4}, Mesh{2, 2}})
      expect_near(on_mesh(mesh, options, life), one);
  }
}

// bfloat16 values come from float32 ones that the ranks keep in parts.
TEST(AllWeightsOf, BFloat16AreTheSameBitsOnEveryRankAndAgain) {
  const model::TinyModel model(config_of("llama", true));
  const EngineOptions options{.model = {.path = model.path(), .mixed_precision = "bf16"}};
  const auto all = [](Rank& rank) {
    train_rank(rank);
    rank.score(9);
  };
  for (const Mesh& mesh : {Mesh{2, 1}, Mesh{2, 2}}) {
    const std::vector<Told> got = on_mesh(mesh, options, all), again = on_mesh(mesh, options, all);
    for (size_t r = 0; r < got.size(); ++r) {
      EXPECT_EQ(again[r].bits, got[r].bits) << r;
      EXPECT_EQ(got[r].tensors, got[0].tensors) << r;
      EXPECT_EQ(got[r].tokens, got[0].tokens) << r;
    }
  }
}

// The stacks of experts are cut as matrices are.
TEST(AllWeightsOf, ExpertsAreTrainedWithin1e4OfOneRank) {
  for (const std::string family : {"qwen3_moe", "gpt_oss"}) {
    SCOPED_TRACE(family);
    const model::TinyModel model(model::tiny_family(family));
    const Told one = on_mesh({1, 1}, in_float32(model), train_rank)[0];
    for (const Mesh& mesh : {Mesh{2, 1}, Mesh{1, 2}, Mesh{2, 2}})
      expect_near(on_mesh(mesh, in_float32(model), train_rank), one);
  }
}

// Some families keep norms and others in float32 beside weights in bfloat16.
TEST(AllWeightsOf, WhatABFloat16ModelHasInFloat32LearnsAsOnOneRank) {
  const auto life = [](Rank& rank) {
    rank.create();
    rank.learn(1);
    rank.inspect();
  };
  for (const std::string family : {"gpt_oss", "qwen3_5"}) {
    const model::TinyModel model(model::tiny_family(family));
    const EngineOptions options{.model = {.path = model.path(), .mixed_precision = "bf16"}};
    const Told one = on_mesh({1, 1}, options, life)[0];
    ASSERT_TRUE(
        std::ranges::count(one.tensors, std::string("grad/model.norm.weight"), &NamedTensor::name));
    SCOPED_TRACE(family);
    for (const Mesh& mesh : {Mesh{2, 1}, Mesh{2, 2}})
      expect_near(on_mesh(mesh, options, life), one);
  }
}

// ---- what fails leaves everything as it was

ForwardBackward not_finite_batch(uint64_t seed) {
  ForwardBackward out = batch(seed);
  // The last rank's sequence alone.
  out.sequences.back().weights.assign(out.sequences.back().labels.size(), 3e38F);
  return out;
}

TEST_P(AllWeights, StayAsTheyWereWhenAnOperationFails) {
  const model::TinyModel model(config_of("llama", true));
  const EngineOptions options = in_float32(model);
  const auto life = [](bool fails) {
    return [fails](Rank& rank) {
      const auto refused = [&](const std::function<void()>& call) {
        if (fails) {
          EXPECT_NE(error_of(call), "no error");
        }
      };
      rank.create();
      refused([&] { rank.learn(not_finite_batch(0)); });
      refused([&] { rank.step({}); });
      rank.learn(1);
      refused([&] { rank.learn(not_finite_batch(2)); });
      refused([&] { rank.step({.options = R"({"lr": 1e38, "weight_decay": 10})"}); });
      rank.learn(3);
      rank.step({.options = R"({"lr": 1e-3})"});
      rank.learn(4);
      rank.inspect();
    };
  };
  const std::vector<Told> with = on_mesh(GetParam(), options, life(true)),
                          without = on_mesh(GetParam(), options, life(false));
  for (size_t r = 0; r < with.size(); ++r) EXPECT_EQ(with[r].bits, without[r].bits) << r;
}

// ---- what is sent

// Elements of the model below: those of its matrices, in whole lines of every rank.
constexpr int64_t kFloatsOfHead = 48 * 16;
constexpr int64_t kFloatsOfLayer = 2 * 16 * 16 + 2 * 8 * 16 + 3 * 24 * 16;

// Elements that ranks add up and hold: 16 to a line, all of whole lines.
struct Sizes {
  int64_t parameters = 0, weights = 0;
};

TEST(AllWeightsSend, TheBytesOfTheFormula) {
  JsonObject config = config_of("llama", true);
  config["vocab_size"] = 48;
  const model::TinyModel model(config);
  constexpr int64_t kTokens = 3 + 4 + 5 + 6 + 7 + 8 + 9 + 10;
  constexpr int64_t kAll = int64_t{1} << 40;
  for (const Mesh& mesh : {Mesh{2, 1}, Mesh{4, 1}, Mesh{1, 2}, Mesh{1, 4}, Mesh{2, 2},
                           Mesh{1, 2, kAll}, Mesh{2, 2, kAll}}) {
    SCOPED_TRACE(testing::PrintToString(mesh));
    const int n = mesh.size();
    std::vector<int64_t> of_pass(static_cast<size_t>(n)), of_step(static_cast<size_t>(n));
    Sizes sizes;
    int64_t vectors = 0;
    on_counted_ranks(mesh, in_float32(model), [&](Engine& engine, int r, const Channels& sent) {
      Told told;
      Rank rank(engine, r, n, told);
      rank.create();
      rank.inspect();
      int64_t before = sent.data.all_to_all, base = sent.base.all_to_all;
      const auto base_since = [&] {
        return sent.base.all_to_all - std::exchange(base, sent.base.all_to_all);
      };
      rank.learn(1);
      of_pass[static_cast<size_t>(r)] =
          sent.data.all_to_all - std::exchange(before, sent.data.all_to_all);
      const int64_t of_first = base_since();
      rank.step({.max_grad_norm = 0.5});
      of_step[static_cast<size_t>(r)] = sent.data.all_to_all - before;
      // Each piece twice in a pass, but for what stays: once, for ever.
      int64_t pieces = 0;
      for (const int64_t floats : {kFloatsOfHead, kFloatsOfLayer, kFloatsOfLayer})
        pieces += (mesh.fsdp - 1) * 4 * floats / mesh.fsdp;
      EXPECT_EQ(of_first, mesh.gathered_bytes > 0 ? pieces : 2 * pieces);
      EXPECT_EQ(base_since(), 0) << "a step";
      rank.learn(2);
      EXPECT_EQ(base_since(), mesh.gathered_bytes > 0 ? 0 : 2 * pieces);
      if (r > 0) return;
      for (const NamedTensor& t : told.tensors) {
        sizes.parameters += std::ssize(t.values);
        sizes.weights += 1;
        if (t.shape.size() == 1) vectors += std::ssize(t.values);
      }
    });
    const auto sum = [](const auto& x) { return std::accumulate(x.begin(), x.end(), int64_t{0}); };
    // To each other rank its part of the gradients, a byte for each weight, its rows, whether the
    // loss and then the sums are finite.
    EXPECT_EQ(sum(of_pass),
              (n - 1) * (4 * sizes.parameters + n * (sizes.weights + 4 + 4) + 4 * kTokens));
    // Values, to those that hold them, a double for each weight, and whether it can be stepped.
    const int64_t by_all = mesh.gathered_bytes > 0 ? sizes.parameters : vectors;
    EXPECT_EQ(sum(of_step), 4 * (mesh.dp - 1) * (sizes.parameters - by_all) + 4 * (n - 1) * by_all +
                                n * (n - 1) * (8 * sizes.weights + 256));
  }
}

}  // namespace
}  // namespace twinkle::engine
