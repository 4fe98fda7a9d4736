#include "twinkle/lora/peft/filters.h"

#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"
#include "twinkle/lora/targets.h"

namespace twinkle::lora {
namespace {

using Texts = std::vector<std::string>;

const std::vector<LinearShape>& three_layers() {
  static const std::vector<LinearShape> out = [] {
    std::vector<LinearShape> made;
    for (const char* layer : {"0", "1", "11"})
      for (const char* name : {"self_attn.q_proj", "mlp.up_proj", "mlp.experts.1.up_proj"})
        made.push_back({"model.layers." + std::string(layer) + "." + name, 4, 4});
    made.push_back({"lm_head", 4, 4});
    return made;
  }();
  return out;
}

Texts matched(const PeftConfig& config) {
  Texts out;
  for (const size_t i : match_targets(config, three_layers()))
    out.push_back(three_layers()[i].path.substr(three_layers()[i].path.find('.', 7) + 1));
  return out;
}

PeftConfig filtered(Texts targets, std::vector<int64_t> layers) {
  return {.target_modules = std::move(targets), .layers_to_transform = std::move(layers)};
}

TEST(Filters, LayersAreTheFirstNumberOfAPath) {
  EXPECT_EQ(matched(filtered({"up_proj"}, {1})),
            (Texts{"1.mlp.up_proj", "1.mlp.experts.1.up_proj"}));
  EXPECT_EQ(matched(filtered({"q_proj"}, {0, 11})),
            (Texts{"0.self_attn.q_proj", "11.self_attn.q_proj"}));
}

TEST(Filters, AWholePathIsReachedInAnyLayer) {
  EXPECT_EQ(matched(filtered({"model.layers.0.self_attn.q_proj", "mlp.up_proj"}, {1})),
            (Texts{"0.self_attn.q_proj", "1.mlp.up_proj"}));
}

TEST(Filters, APatternSaysWhatStandsBeforeTheNumber) {
  PeftConfig config = filtered({"up_proj"}, {1});
  config.layers_pattern = {"h", "experts"};
  EXPECT_EQ(matched(config), (Texts{"0.mlp.experts.1.up_proj", "1.mlp.experts.1.up_proj",
                                    "11.mlp.experts.1.up_proj"}));
  config.layers_pattern = {"model.language_model.layers"};
  EXPECT_EQ(matched(config).size(), 2u) << "by the path inside a model with pictures";
  const PeftConfig named = with_named_targets(config, three_layers());
  EXPECT_FALSE(named.has_filters()) << "others would count no layer";
  EXPECT_EQ(matched(named), matched(config));
  config.layers_pattern = {"("};
  EXPECT_TRUE(error_of([&] {
                matched(config);
              }).starts_with("lora: layers_pattern '(' is not a regular expression: "));
}

TEST(Filters, ExcludedAreNamesOrAWholeExpression) {
  PeftConfig config{.target_modules = "all-linear"};
  config.exclude_modules = Texts{"up_proj", "model.layers.1.self_attn.q_proj", "proj"};
  EXPECT_EQ(matched(config), (Texts{"0.self_attn.q_proj", "11.self_attn.q_proj"}));
  config.exclude_modules = ".*up_proj|.*layers.1.*";
  EXPECT_EQ(matched(config), Texts{"0.self_attn.q_proj"});
  config.exclude_modules = "up_proj";
  EXPECT_EQ(matched(config).size(), 9u) << "the whole path, as in peft";
  config.exclude_modules = R"(model\.language_model\..*up_proj)";
  EXPECT_EQ(matched(config).size(), 3u);
  const auto named = with_named_targets(config, three_layers());
  EXPECT_EQ(std::get<Texts>(named.exclude_modules).size(), 6u) << "peft knows no other paths";
  EXPECT_EQ(matched(named), matched(config));
}

TEST(Filters, AnExcludedHeadIsNoTarget) {
  PeftConfig config{.target_modules = Texts{"lm_head", "q_proj"}};
  EXPECT_TRUE(targets_head(config));
  config.exclude_modules = Texts{"lm_head"};
  EXPECT_FALSE(targets_head(config));
  config.exclude_modules = "lm_.*";
  EXPECT_FALSE(targets_head(config));
}

TEST(Filters, WhatLeavesNothingIsRefusedAndWhatMatchesNothingIsNamed) {
  PeftConfig config = filtered({"q_proj"}, {2});
  EXPECT_EQ(
      error_of([&] { matched(config); }),
      "lora: of target_modules nothing is left by layers_to_transform [2]; the model's layers "
      "are 0 to 11");
  EXPECT_EQ(error_of([&] { matched(filtered({"x"}, {2})); }),
            "lora: target module 'x' matches nothing; there is: q_proj, up_proj, lm_head");
  config = filtered({"q_proj"}, {1, 2});
  config.exclude_modules = Texts{"up_proj", "x"};
  EXPECT_EQ(idle_filters(config, three_layers()),
            (Texts{"exclude_modules 'x'", "layers_to_transform 2"}));
  config.exclude_modules = "x.*";
  EXPECT_EQ(idle_filters(config, three_layers())[0], "exclude_modules 'x.*'");
}

}  // namespace
}  // namespace twinkle::lora
