#include "twinkle/lora/peft/patterns.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "twinkle/base/error_for_test.h"
#include "twinkle/lora/targets.h"

namespace twinkle::lora {
namespace {

using Names = std::vector<std::string>;
using Indices = std::vector<size_t>;

TEST(Patterns, AreOfWholePathsOrOfWhatIsBehindADot) {
  const Patterns patterns("rank_pattern", {"q_proj", "layers.1.q_proj", R"(layers\.\d+\.q_proj)",
                                           "model.layers.1.q_proj", "proj", "q_proj"});
  EXPECT_EQ(patterns.all("model.layers.1.q_proj"), (Indices{0, 1, 2, 3, 5}));
  EXPECT_EQ(patterns.all("model.layers.12.q_proj"), (Indices{0, 2, 5}));
  EXPECT_EQ(patterns.all("model.layers.1.mq_proj"), Indices{});
  EXPECT_EQ(patterns.all("q_proj"), (Indices{0, 5}));
  EXPECT_EQ(patterns.first("model.layers.1.q_proj"), 0u);
  EXPECT_EQ(patterns.first("model.layers.1.k_proj"), std::nullopt);
}

// Plain ones are looked up and others searched for; both are what the expression says.
TEST(Patterns, OfAnyTextsMatchAsTheExpressionOfPeftDoes) {
  std::mt19937 draw(7);
  const auto text = [&](const char* letters, size_t most) {
    const std::string all(letters);
    std::string out;
    for (size_t n = draw() % (most + 1); out.size() < n;) out += all[draw() % all.size()];
    return out;
  };
  size_t num_matches = 0;
  for (int round = 0; round < 300; ++round) {
    Names texts;
    for (int i = 0; i < 20; ++i) texts.push_back(text(i % 4 ? "ab._" : "ab.*", 4));
    std::erase_if(texts, [](const std::string& t) {
      return t.starts_with('*') || t.find("**") != t.npos;  // no expression
    });
    const Patterns patterns("rank_pattern", texts);
    for (int i = 0; i < 30; ++i) {
      const std::string path = text("ab._", 9);
      Indices want;
      for (size_t t = 0; t < texts.size(); ++t)
        if (matches(path, boost::regex("(?:.*\\.)?(?:" + texts[t] + ")"))) want.push_back(t);
      ASSERT_EQ(patterns.all(path), want) << path;
      ASSERT_EQ(patterns.first(path), want.empty() ? std::nullopt : std::optional(want[0])) << path;
      num_matches += want.size();
    }
  }
  EXPECT_GT(num_matches, 1000u);
}

// By a module's path, its stack's, and those of the other class of transformers.
TEST(Patterns, ThatMatchNoAdaptedModuleAreTold) {
  PeftConfig config;
  config.rank_pattern = {{"q_prog", 2}, {"q_proj", 2}, {"model.language_model.layers.0.q_proj", 3}};
  config.alpha_pattern = {{"mlp.experts.down_proj", 2.0}, {R"(.*\.up_proj)", 3.0}};
  const Names paths{"model.layers.0.q_proj", "model.layers.1.mlp.experts.7.down_proj"};
  EXPECT_EQ(idle_patterns(config, paths), (Names{"q_prog", R"(.*\.up_proj)"}));
}

// The head has no other path, which an expression of any text would match.
TEST(Patterns, OfAllButTheHeadStayAsTheyAre) {
  PeftConfig config{.rank = 4, .target_modules = Names{"q_proj", "lm_head"}};
  config.rank_pattern = {{"(?!lm_head).*", 2}};
  const std::vector<LinearShape> linears{{"model.layers.0.q_proj", 8, 8}, {"lm_head", 8, 16}};
  const PeftConfig named = with_named_targets(config, linears);
  EXPECT_EQ(named.rank_pattern, config.rank_pattern);
  EXPECT_EQ(Sizes(named).rank("lm_head"), 4);
  EXPECT_EQ(Sizes(named).rank("model.layers.0.q_proj"), 2);
}

TEST(Patterns, WhatIsNoExpressionIsRefusedByItsField) {
  EXPECT_EQ(error_of([] {
              Patterns("alpha_pattern", {"q_proj", "("});
            }).find("lora: alpha_pattern '(' is not a regular expression"),
            0u);
}

}  // namespace
}  // namespace twinkle::lora
