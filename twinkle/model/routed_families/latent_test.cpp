#include "twinkle/model/routed_families/latent.h"

#include <gtest/gtest.h>

#include <cmath>

#include "twinkle/base/error_for_test.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::model {
namespace {

JsonObject latent_config(const std::string& type, const std::string& architecture) {
  JsonObject c = tiny_config();
  c["model_type"] = type;
  c["architectures"] = JsonArray{Json(architecture)};
  c["num_hidden_layers"] = 4;
  c["num_key_value_heads"] = 4;
  c["moe_intermediate_size"] = 24;
  c["num_experts_per_tok"] = 3;
  c["n_routed_experts"] = 8;
  c["q_lora_rank"] = nullptr;
  c["kv_lora_rank"] = 24;
  c["qk_nope_head_dim"] = 16;
  c["qk_rope_head_dim"] = 8;
  c["v_head_dim"] = 12;
  return c;
}

JsonObject v2_config() { return latent_config("deepseek_v2", "DeepseekV2ForCausalLM"); }

JsonObject v3_config() {
  JsonObject c = latent_config("deepseek_v3", "DeepseekV3ForCausalLM");
  c["n_group"] = 4;
  c["topk_group"] = 2;
  return c;
}

const LatentSpec& latent_of(const DecoderSpec& spec) {
  return std::get<LatentSpec>(spec.layers.back().mixer);
}
const ExpertsSpec& latent_experts_of(const DecoderSpec& spec) {
  return std::get<ExpertsSpec>(spec.layers.back().mlp);
}

TEST(DeepseekV2, HasLatentAttentionAndTheSharedExperts) {
  JsonObject c = v2_config();
  DecoderSpec spec = read_spec(c);
  EXPECT_EQ(latent_of(spec).q_rank, 0);
  EXPECT_EQ(latent_of(spec).kv_rank, 24);
  EXPECT_DOUBLE_EQ(latent_of(spec).scale, 1 / std::sqrt(24.0));
  EXPECT_EQ(spec.rope.rotary_dim, 8);
  EXPECT_TRUE(spec.rope.interleaved);
  EXPECT_EQ(latent_experts_of(spec).shared_size, 2 * 24);
  EXPECT_EQ(latent_experts_of(spec).aux_loss, nn::AuxLoss::kEachLayer);
  EXPECT_EQ(latent_experts_of(spec).route.groups, 1);
  c["q_lora_rank"] = 20;
  c["topk_method"] = "group_limited_greedy";
  c["n_group"] = 4;
  c["topk_group"] = 2;
  c["first_k_dense_replace"] = 1;
  spec = read_spec(c);
  EXPECT_EQ(latent_of(spec).q_rank, 20);
  EXPECT_EQ(latent_experts_of(spec).route.groups, 4);
  EXPECT_FALSE(latent_experts_of(spec).route.group_by_two);
  EXPECT_TRUE(std::holds_alternative<GatedMlpSpec>(spec.layers[0].mlp));
}

TEST(DeepseekV2, TheScaleHasYarnsFactorTwice) {
  JsonObject c = v2_config();
  c["rope_scaling"] = JsonObject{{"type", "yarn"},
                                 {"factor", 40},
                                 {"original_max_position_embeddings", 64},
                                 {"mscale", 0.707},
                                 {"mscale_all_dim", 0.707}};
  const double m = 0.1 * 0.707 * std::log(40.0) + 1;
  EXPECT_DOUBLE_EQ(latent_of(read_spec(c)).scale, m * m / std::sqrt(24.0));
  c["rope_scaling"] = JsonObject{{"type", "dynamic"}, {"factor", 4}, {"mscale_all_dim", 1}};
  EXPECT_NE(invalid_of([&] { read_spec(c); }).find("known of kinds default and yarn"),
            std::string::npos);
}

TEST(DeepseekV2, ItsFirstFilesHaveTheNameOfTheModelBeforeIt) {
  JsonObject c = v2_config();
  const DecoderSpec spec = read_spec(c);
  c["model_type"] = "deepseek";
  c["architectures"] = JsonArray{Json("DeepseekForCausalLM")};
  DecoderSpec early = read_spec(c);
  early.family = spec.family;
  EXPECT_EQ(difference(early, spec), "");
}

TEST(DeepseekV2, WhatWouldChangeTheArithmeticIsRefused) {
  const auto refusal = [](const char* key, Json value) {
    JsonObject c = v2_config();
    c[key] = std::move(value);
    return invalid_of([&] { read_spec(c); });
  };
  EXPECT_EQ(refusal("topk_method", "noaux_tc"),
            "model: config field 'topk_method' is 'noaux_tc'; known: greedy, group_limited_greedy");
  EXPECT_EQ(refusal("rope_interleave", false),
            "model: config field 'rope_interleave' is false; known: true");
  EXPECT_EQ(refusal("scoring_func", "sigmoid"),
            "model: config field 'scoring_func' is \"sigmoid\"; known: \"softmax\"");
  EXPECT_EQ(refusal("norm_topk_prob", true),
            "model: config field 'norm_topk_prob' is true; known: false");
  EXPECT_EQ(refusal("moe_layer_freq", 2), "model: config field 'moe_layer_freq' is 2; known: 1");
  EXPECT_EQ(refusal("mlp_bias", true), "model: config field 'mlp_bias' is true; known: false");
  EXPECT_EQ(refusal("num_key_value_heads", 2),
            "model: config field 'num_key_value_heads' is 2; with latent attention it is "
            "num_attention_heads, 4");
  EXPECT_EQ(refusal("qk_rope_head_dim", 7),
            "model: config field 'qk_rope_head_dim' is 7, rope needs an even one");
  EXPECT_NE(refusal("kv_lora_rank", nullptr).find("kv_lora_rank"), std::string::npos);
}

TEST(DeepseekV3, ChoosesBySigmoidsOfTheBestGroupsAndSkipsWhatPredictsFurtherTokens) {
  JsonObject c = v3_config();
  c["first_k_dense_replace"] = 1;
  c["num_nextn_predict_layers"] = 2;
  DecoderSpec spec = read_spec(c);
  const kernels::RouteOptions& route = latent_experts_of(spec).route;
  EXPECT_EQ(route.score, kernels::RouteScore::kSigmoid);
  EXPECT_EQ(route.groups, 4);
  EXPECT_EQ(route.top_groups, 2);
  EXPECT_TRUE(route.group_by_two && route.normalise);
  EXPECT_EQ(route.scale, 2.5);
  EXPECT_TRUE(latent_experts_of(spec).correction);
  EXPECT_EQ(latent_experts_of(spec).shared_size, 24);
  spec.layout.settle(
      std::vector<std::string>{"model.layers.4.eh_proj.weight", "model.layers.5.eh_proj.weight"});
  EXPECT_TRUE(spec.layout.skips("model.layers.4.eh_proj.weight"));
  EXPECT_TRUE(spec.layout.skips("model.layers.5.mlp.gate.weight"));
  EXPECT_FALSE(spec.layout.skips("model.layers.3.self_attn.o_proj.weight"));
  c["rope_interleave"] = false;
  EXPECT_FALSE(read_spec(c).rope.interleaved);
}

// num_hidden_layers is too small then, whatever the config says of further tokens.
TEST(DeepseekV3, ALayerBehindTheLastOneThatPredictsNothingIsNotSkipped) {
  JsonObject c = v3_config();
  for (const int64_t count : {0, 1}) {
    c["num_nextn_predict_layers"] = count;
    Layout layout = read_spec(c).layout;
    layout.settle(std::vector<std::string>{"model.layers.4.self_attn.o_proj.weight",
                                           "model.layers.5.eh_proj.weight"});
    EXPECT_FALSE(layout.skips("model.layers.4.self_attn.o_proj.weight"));
    EXPECT_TRUE(layout.skips("model.layers.5.self_attn.o_proj.weight"));
    layout.settle(std::vector<std::string>{"model.layers.4.eh_proj.weight"});
    EXPECT_FALSE(layout.skips("model.layers.5.self_attn.o_proj.weight"));
  }
}

TEST(DeepseekV3, AFlagThatIsNullIsFalse) {
  JsonObject c = v3_config();
  c["rope_scaling"] = JsonObject{{"type", "yarn"}, {"factor", 4}};
  EXPECT_TRUE(read_spec(c).rope.interleaved && read_spec(c).rope.truncate);
  EXPECT_TRUE(latent_experts_of(read_spec(c)).route.normalise);
  for (const char* key : {"rope_interleave", "norm_topk_prob"}) c[key] = nullptr;
  c["rope_scaling"].as_object()["truncate"] = nullptr;
  EXPECT_FALSE(read_spec(c).rope.interleaved || read_spec(c).rope.truncate);
  EXPECT_FALSE(latent_experts_of(read_spec(c)).route.normalise);
}

}  // namespace
}  // namespace twinkle::model
