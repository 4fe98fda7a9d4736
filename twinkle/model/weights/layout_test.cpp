#include "twinkle/model/weights/layout.h"

#include <gtest/gtest.h>

namespace twinkle::model {
namespace {

TEST(Layout, WithoutRenamesNamesAreLlamas) {
  EXPECT_EQ(Layout().name("model.layers.3.mlp.up_proj.weight"),
            "model.layers.3.mlp.up_proj.weight");
  EXPECT_FALSE(Layout().skips("model.layers.3.mlp.up_proj.weight"));
  EXPECT_TRUE(Layout().skips("model.layers.3.self_attn.rotary_emb.inv_freq"));
}

TEST(Layout, NamesOfALayerAndOfTheModelAreRenamedOnceAtTheirBeginnings) {
  const Layout layout{.model = {{"model.layers", "encoder.layers"}, {"lm_head", "output"}},
                      .layer = {{"a.q_proj", "b.query"},
                                {"post_attention_layernorm", "pre_feedforward_layernorm"},
                                {"post_self_attn_layernorm", "post_attention_layernorm"}}};
  EXPECT_EQ(layout.name("model.layers.12.a.q_proj.bias"), "encoder.layers.12.b.query.bias");
  EXPECT_EQ(layout.name("model.layers.12.a.q_proj"), "encoder.layers.12.b.query");
  EXPECT_EQ(layout.name("model.layers.1.a.q_proj2.bias"), "encoder.layers.1.a.q_proj2.bias");
  EXPECT_EQ(layout.name("model.layers.0.post_self_attn_layernorm.weight"),
            "encoder.layers.0.post_attention_layernorm.weight");
  EXPECT_EQ(layout.name("model.layers"), "encoder.layers");
  EXPECT_EQ(layout.name("lm_head.weight"), "output.weight");
  EXPECT_EQ(layout.name("model.norm.weight"), "model.norm.weight");
}

TEST(Layout, OlderFilesHaveNamesOfTheirOwnAndTheSamePaths) {
  Layout layout{.model = {{"model", "model.language_model"}},
                .older = {{"model.language_model", "language_model.model"},
                          {"lm_head", "language_model.lm_head"}}};
  const std::string now = "model.language_model.norm.weight";
  layout.settle(std::vector<std::string>{now, "lm_head.weight"});
  EXPECT_EQ(layout.name("model.norm.weight"), now);
  layout.settle(std::vector<std::string>{"language_model.model.norm.weight"});
  EXPECT_EQ(layout.name("model.norm.weight"), "language_model.model.norm.weight");
  EXPECT_EQ(layout.name("lm_head.weight"), "language_model.lm_head.weight");
  EXPECT_EQ(layout.path("model.layers.0.mlp.up_proj"), "model.language_model.layers.0.mlp.up_proj");
}

TEST(Layout, OfTheLayersBehindTheLastOneThoseThatPredictTokensAreSkipped) {
  Layout layout{.skipped = {"mtp."}, .behind = {"model.layers.2.", "model.layers.3."}};
  EXPECT_FALSE(layout.skips("model.layers.2.mlp.gate.weight"));
  for (int again = 0; again < 2; ++again) {
    layout.settle(std::vector<std::string>{"model.layers.3.eh_proj.weight", "model.norm.weight"});
    EXPECT_FALSE(layout.skips("model.layers.2.mlp.gate.weight"));
    EXPECT_TRUE(layout.skips("model.layers.3.mlp.gate.weight"));
    EXPECT_EQ(layout.skipped.size(), 2u);
  }
}

TEST(Layout, AStacksPartsAreThoseOfOneMatrixAfterTheOther) {
  const Layout layout{.stacks = {{"mlp.experts.down_proj", {"mlp.experts.*.w2.weight"}},
                                 {"mlp.experts.gate_up_proj",
                                  {"mlp.experts.*.w1.weight", "mlp.experts.*.w3.weight"}}},
                      .skipped = {"mtp."}};
  EXPECT_EQ(
      layout.parts_of("l.4.mlp.experts.gate_up_proj", 2),
      (std::vector<std::string>{"l.4.mlp.experts.0.w1.weight", "l.4.mlp.experts.0.w3.weight",
                                "l.4.mlp.experts.1.w1.weight", "l.4.mlp.experts.1.w3.weight"}));
  EXPECT_TRUE(layout.parts_of("l.4.mlp.down_proj", 2).empty());
  EXPECT_TRUE(layout.skips("mtp.fc.weight"));
  EXPECT_FALSE(layout.skips("model.mtp.fc.weight"));
}

}  // namespace
}  // namespace twinkle::model
