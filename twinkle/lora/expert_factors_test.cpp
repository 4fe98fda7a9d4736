#include "twinkle/lora/expert_factors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"

namespace twinkle::lora {
namespace {

constexpr int64_t kFewExperts = 2, kSmallWidth = 8, kSmallInner = 3, kSmallRank = 2;

// A layer with experts, as a decoder lists its linears, and one dense one.
std::vector<LinearShape> some_linears() {
  std::vector<LinearShape> out{{"model.layers.0.self_attn.q_proj", kSmallWidth, kSmallWidth},
                               {"model.layers.0.mlp.gate_proj", kSmallWidth, kSmallInner}};
  for (int64_t e = 0; e < kFewExperts; ++e) {
    const std::string path = "model.layers.1.mlp.experts." + std::to_string(e) + ".";
    out.push_back({path + "gate_up_proj", kSmallWidth, 2 * kSmallInner});
    out.push_back({path + "gate_proj", kSmallWidth, kSmallInner});
    out.push_back({path + "up_proj", kSmallWidth, kSmallInner});
    out.push_back({path + "down_proj", kSmallInner, kSmallWidth});
  }
  out.push_back({"lm_head", kSmallWidth, 20});
  return out;
}

// Each is made in its place: GCC 12 warns of nested braces.
StackLayout layout_of(int64_t inputs, int64_t outputs, const char* version) {
  const LinearShape expert{"linear", inputs, outputs};
  return {expert, kFewExperts, kSmallRank, version};
}

PeftConfig config_of(const std::vector<std::string>& modules,
                     const std::vector<std::string>& parameters) {
  PeftConfig config{.rank = kSmallRank, .target_modules = modules};
  config.target_parameters = parameters;
  return config;
}

std::vector<std::string> targets(const PeftConfig& config) {
  const auto linears = some_linears();
  std::vector<std::string> out;
  for (const size_t i : match_targets(config, linears)) out.push_back(linears[i].path);
  return out;
}

using Paths = std::vector<std::string>;

TEST(ExpertFactors, APathSaysWhichExpertsLinearItIs) {
  const auto path = expert_path("model.layers.1.mlp.experts.17.down_proj");
  ASSERT_TRUE(path);
  EXPECT_EQ(path->module, "model.layers.1.mlp.experts");
  EXPECT_EQ(path->expert, 17);
  EXPECT_EQ(path->name, "down_proj");
  EXPECT_EQ(path->parameter(), "model.layers.1.mlp.experts.down_proj");
  for (const char* other : {"model.layers.1.mlp.down_proj", "mlp.experts.down_proj",
                            "mlp.shared_experts.up_proj", "mlp.experts.1"}) {
    EXPECT_FALSE(expert_path(other)) << other;
  }
}

TEST(ExpertFactors, AllLinearIsEveryLinearOfEveryExpertOnceAndNotTheHead) {
  PeftConfig config;
  config.target_modules = "all-linear";
  const Paths all = targets(config);
  EXPECT_EQ(all.size(), 2u + 3 * kFewExperts);
  for (const std::string& path : all) EXPECT_EQ(path.find("gate_up_proj"), std::string::npos);
  const PeftConfig named = with_named_targets(config, some_linears());
  EXPECT_EQ(std::get<Paths>(named.target_modules),
            (Paths{"q_proj", "gate_proj", "up_proj", "down_proj"}));
  EXPECT_EQ(targets(named), all);
}

TEST(ExpertFactors, AllLinearWithTargetParametersLeavesExpertsToThese) {
  PeftConfig config = config_of({}, {"mlp.experts.down_proj"});
  config.target_modules = "all-linear";
  const std::string layer = "model.layers.1.mlp.experts.";
  const Paths all = targets(config);
  EXPECT_EQ(all, (Paths{"model.layers.0.self_attn.q_proj", "model.layers.0.mlp.gate_proj",
                        layer + "0.down_proj", layer + "1.down_proj"}));
  const PeftConfig named = with_named_targets(config, some_linears());
  EXPECT_EQ(std::get<Paths>(named.target_modules), (Paths{"q_proj", "mlp.gate_proj"}));
  EXPECT_EQ(targets(named), all);
}

TEST(ExpertFactors, TargetParametersAreTheStacksOfAllExperts) {
  const std::string layer = "model.layers.1.mlp.experts.";
  EXPECT_EQ(targets(config_of({}, {"mlp.experts.gate_up_proj", "down_proj"})),
            (Paths{layer + "0.gate_up_proj", layer + "0.down_proj", layer + "1.gate_up_proj",
                   layer + "1.down_proj"}));
  EXPECT_EQ(
      targets(config_of({"q_proj"}, {"experts.down_proj"})),
      (Paths{"model.layers.0.self_attn.q_proj", layer + "0.down_proj", layer + "1.down_proj"}));
  EXPECT_EQ(
      error_of([] { targets(config_of({}, {"gate.weight"})); }),
      "lora: target parameter 'gate.weight' matches nothing; there is: "
      "mlp.experts.down_proj, mlp.experts.gate_up_proj; a router is not adapted: leave it out");
  EXPECT_EQ(error_of([] { targets(config_of({"up_proj"}, {"gate_up_proj"})); }),
            "lora: the adapter targets " + layer + "0.up_proj and " + layer +
                "0.gate_up_proj, which holds it: leave one of them out");
}

TEST(ExpertFactors, MixtralsFilesHaveOtherNamesForAnExpertsLinears) {
  const std::pair<std::string, std::string> names[] = {
      {"model.layers.3.mlp.experts.12.up_proj", "model.layers.3.block_sparse_moe.experts.12.w3"},
      {"mlp.experts.0.gate_proj", "block_sparse_moe.experts.0.w1"},
      {R"(.*\.down_proj)", R"(.*\.w2)"},
      {"gate_proj", "w1"},
      {"o_proj", "o_proj"},
      {"gate_up_proj", "gate_up_proj"}};
  for (const auto& [ours, theirs] : names) {
    std::string name = ours;
    to_mixtrals_name(name);
    EXPECT_EQ(name, theirs);
    from_mixtrals_name(name);
    EXPECT_EQ(name, ours);
  }
}

TEST(ExpertFactors, TargetsMayHaveMixtralsNamesWhereExpertsAreAllThereIsOfThem) {
  auto linears = some_linears();
  const auto config = config_of({"1.w1", "w2", "q_proj"}, {});
  std::vector<std::string> unused;
  match_targets(config, linears, &unused);
  EXPECT_EQ(unused, (std::vector<std::string>{"1.w1", "w2"})) << "the dense layer's would be, too";
  linears.erase(linears.begin() + 1);
  const auto same = config_of({"1.gate_proj", "down_proj", "q_proj"}, {});
  EXPECT_EQ(match_targets(config, linears), match_targets(same, linears));
  EXPECT_EQ(with_named_targets(config, linears), same);
}

TEST(ExpertFactors, PatternsMatchTheStacksPathAndAnExpertsOwn) {
  PeftConfig config = config_of({}, {"gate_up_proj", "down_proj"});
  config.rank_pattern = {{R"(.*\.gate_up_proj)", 4}, {R"(mlp\.experts\.down_proj)", 6}};
  const Sizes sizes(config);
  EXPECT_EQ(sizes.rank("model.layers.1.mlp.experts.0.gate_up_proj"), 4);
  EXPECT_EQ(sizes.rank("model.layers.1.mlp.experts.1.down_proj"), 6);
  EXPECT_EQ(sizes.rank("model.layers.1.self_attn.q_proj"), kSmallRank);
}

// The class with pictures, for example, whose modules are known by another path.
TEST(ExpertFactors, StacksAreKnownByTheOtherPathTooAndSavedByTheOneHere) {
  const std::string other = "model.language_model.layers.1.mlp.experts.down_proj",
                    here = "model.layers.1.mlp.experts.down_proj";
  PeftConfig config = config_of({}, {other});
  config.rank_pattern = {{R"(model\.language_model\..*\.down_proj)", 6}, {"gate_up_proj", 3}};
  EXPECT_EQ(targets(config), (Paths{"model.layers.1.mlp.experts.0.down_proj",
                                    "model.layers.1.mlp.experts.1.down_proj"}));
  EXPECT_EQ(Sizes(config).rank("model.layers.1.mlp.experts.1.down_proj"), 6);
  config.rank_pattern[0].first = R"(model\.language_model\.layers\.1\.mlp\.experts\.down_proj)";
  EXPECT_EQ(Sizes(config).rank("model.layers.1.mlp.experts.1.down_proj"), 6);
  const PeftConfig named = with_named_targets(config, some_linears());
  EXPECT_EQ(named.target_parameters, Paths{here});
  EXPECT_EQ(named.rank_pattern,
            (std::vector<std::pair<std::string, int64_t>>{{here, 6}, {"gate_up_proj", 3}}));
}

TEST(ExpertFactors, ThePairOfGateAndUpIsTheInnerOneOfTwo) {
  const auto linears = some_linears();
  const auto modules = [&](const Paths& parameters) {
    Paths out;
    const PeftConfig config = config_of({}, parameters);
    for (const StackedPair& pair : stacked_pairs(linears, match_parameters(config, linears))) {
      EXPECT_EQ(pair.linears.size(), size_t{kFewExperts});
      out.push_back(pair.module + " " + expert_path(linears[pair.linears[1]].path)->name);
    }
    return out;
  };
  const std::string module = "model.layers.1.mlp.experts";
  EXPECT_EQ(modules({"gate_up_proj", "down_proj"}),
            (Paths{module + " down_proj", module + ".base_layer gate_up_proj"}));
  EXPECT_EQ(modules({"gate_up_proj"}), (Paths{module + " gate_up_proj"}));
  EXPECT_EQ(modules({"down_proj"}), (Paths{module + " down_proj"}));
}

// As peft's ParamWrapper.get_delta_weight has it: [E, out, in] without the scale.
at::Tensor by_peft(const Pair& all) {
  const at::Tensor a = all.a.reshape({kFewExperts, -1, all.a.size(1)});
  const at::Tensor b = all.b.reshape({all.b.size(0), -1, kFewExperts});
  return at::einsum("ore,eri->eoi", {b, a});
}

TEST(ExpertFactors, SplitAndJoinedTheyAreThePairsOfPeft) {
  at::manual_seed(1);
  const StackLayout layout = layout_of(kSmallWidth, 2 * kSmallInner, "0.21.2");
  const Pair all{at::randn({4, 8}), at::randn({6, 4})};
  check_stack(all.a.sizes(), all.b.sizes(), layout, "x");
  const auto pairs = split_pair(all, layout);
  const at::Tensor deltas = by_peft(all);
  for (size_t e = 0; e < pairs.size(); ++e) {
    EXPECT_TRUE(at::allclose(pairs[e].b.matmul(pairs[e].a), deltas[static_cast<int64_t>(e)]));
  }
  const Pair again = joined_pair(pairs);
  EXPECT_TRUE(at::equal(again.a, all.a));
  EXPECT_TRUE(at::equal(again.b, all.b));
}

TEST(ExpertFactors, StacksOfOldVersionsAreTurnedRound) {
  at::manual_seed(2);
  // E 2, H 8, I 3, r 2: peft before 0.19 wrote (4, 6) and (8, 4).
  const Pair old{at::randn({4, 6}), at::randn({8, 4})};
  const StackLayout layout = layout_of(kSmallWidth, 2 * kSmallInner, "0.17.1");
  check_stack(old.a.sizes(), old.b.sizes(), layout, "x");
  const auto pairs = split_pair(old, layout);
  const at::Tensor deltas = by_peft(old).transpose(1, 2);  // it added "e i o" to [E, out, in]
  for (size_t e = 0; e < pairs.size(); ++e) {
    EXPECT_EQ(pairs[e].a.sizes(), (at::IntArrayRef{kSmallRank, kSmallWidth}));
    EXPECT_TRUE(at::allclose(pairs[e].b.matmul(pairs[e].a), deltas[static_cast<int64_t>(e)]));
  }
}

TEST(ExpertFactors, OfSquareExpertsTheVersionDecides) {
  at::manual_seed(3);
  const Pair all{at::randn({4, 6}), at::randn({6, 4})};
  for (const char* version : {"0.18.0", "0.19.0", "1.0.0", ""}) {
    const auto pairs = split_pair(all, layout_of(6, 6, version));
    const at::Tensor delta = by_peft(all)[1];
    const bool turned = std::string(version) == "0.18.0";
    EXPECT_TRUE(at::allclose(pairs[1].b.matmul(pairs[1].a), turned ? delta.t() : delta)) << version;
  }
}

// gpt-oss's stacks are [E, in, out], which peft's 0.18 took them for, and later ones are told.
TEST(ExpertFactors, OfSquareExpertsInTurnedStacksNoVersionIsTurnedRound) {
  at::manual_seed(4);
  const Pair all{at::randn({4, 6}), at::randn({6, 4})};
  for (const char* version : {"0.18.0", "0.21.2", ""}) {
    StackLayout layout = layout_of(6, 6, version);
    layout.expert.turned = true;
    const auto pairs = split_pair(all, layout);
    EXPECT_TRUE(at::allclose(pairs[1].b.matmul(pairs[1].a), by_peft(all)[1])) << version;
  }
}

// peft's 0.19 and later over transformers 4, whose module does not say that its stacks are turned.
TEST(ExpertFactors, OfSquareExpertsAnotherStackOfTheFileSaysWhetherTheyAreTurnedRound) {
  at::manual_seed(5);
  const Pair all{at::randn({4, 6}), at::randn({6, 4})};
  for (const bool other : {false, true}) {
    for (const bool turned : {false, true}) {
      StackLayout layout = layout_of(6, 6, other ? "0.21.2" : "0.18.0");
      layout.expert.turned = other;
      layout.turned_round = turned;
      const at::Tensor delta = by_peft(all)[1];
      const auto pairs = split_pair(all, layout);
      EXPECT_TRUE(at::allclose(pairs[1].b.matmul(pairs[1].a), turned ? delta.t() : delta));
    }
  }
  const LinearShape square{"linear", 6, 6}, wide{"linear", 8, 6};
  EXPECT_EQ(turned_by_shape(std::vector<int64_t>{4, 6}, square), std::nullopt);
  EXPECT_EQ(turned_by_shape(std::vector<int64_t>{4, 8}, wide), false);
  EXPECT_EQ(turned_by_shape(std::vector<int64_t>{4, 6}, wide), true);
}

TEST(ExpertFactors, ShapesOfAnotherModelAreRefusedWithTheVersion) {
  const StackLayout layout = layout_of(kSmallInner, kSmallWidth, "0.21.2");
  EXPECT_EQ(
      invalid_of([&] {
        check_stack(std::vector<int64_t>{4, 5}, std::vector<int64_t>{8, 4}, layout, "m.experts");
      }),
      "lora: m.experts has lora_A [4, 5] and lora_B [8, 4], written by peft 0.21.2; this "
      "model's 2 experts have [4, 3] and [8, 4], before peft 0.19 [4, 8] and [3, 4]: is it of "
      "another base model?");
}

}  // namespace
}  // namespace twinkle::lora
