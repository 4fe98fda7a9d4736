#include <gtest/gtest.h>

#include "twinkle/model/family.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::model {
namespace {

// As on the hub: the text model's fields are nested.
JsonObject hub_config() {
  JsonObject text = tiny_config();
  text.erase("architectures");
  text.erase("rope_theta");
  text["model_type"] = "qwen3_5_text";
  text["num_hidden_layers"] = 8;
  text["head_dim"] = 16;
  text["linear_num_key_heads"] = 2;
  text["linear_num_value_heads"] = 4;
  text["linear_key_head_dim"] = 8;
  text["linear_value_head_dim"] = 12;
  text["tie_word_embeddings"] = false;
  text["rope_parameters"] = parse_json(
      R"({"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25,
          "mrope_interleaved": true, "mrope_section": [11, 11, 10]})",
      "rope");
  return {{"model_type", "qwen3_5"},
          {"architectures", JsonArray{"Qwen3_5ForConditionalGeneration"}},
          {"tie_word_embeddings", true},
          {"text_config", text}};
}

JsonObject with(const char* key, const Json& value) {
  JsonObject config = hub_config();
  config["text_config"].as_object()[key] = value;
  return config;
}

TEST(Qwen35, MixesEveryFourthLayerByGatedAttentionAndTheOthersByTheDeltaRule) {
  const DecoderSpec spec = read_spec(hub_config());
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(std::holds_alternative<AttentionSpec>(spec.layers[i].mixer), i % 4 == 3) << i;
  }
  const AttentionSpec& a = spec.layers[3].attention();
  EXPECT_TRUE(a.output_gate && a.qk_norm && !a.qkv_bias);
  const auto& d = std::get<DeltaSpec>(spec.layers[0].mixer);
  EXPECT_EQ(d.num_value_heads, 4);
  EXPECT_EQ(d.value_dim, 12);
  EXPECT_TRUE(spec.norm.zero_centred);
  EXPECT_EQ(spec.rope.rotary_dim, 4);
  EXPECT_TRUE(spec.tied_head) << "the outer flag counts";
  const DecoderSpec listed = read_spec(
      with("layer_types", parse_json(R"(["full_attention", "linear_attention",
      "linear_attention", "linear_attention", "linear_attention", "linear_attention",
      "linear_attention", "linear_attention"])", "types")));
  EXPECT_TRUE(std::holds_alternative<AttentionSpec>(listed.layers[0].mixer));
  EXPECT_TRUE(std::holds_alternative<DeltaSpec>(listed.layers[3].mixer));
}

TEST(Qwen35, NamesOfNestedModelsAreTheLanguageModelsAndOthersAreNotRead) {
  const Layout layout = read_spec(hub_config()).layout;
  EXPECT_EQ(layout.name("model.layers.0.linear_attn.A_log"),
            "model.language_model.layers.0.linear_attn.A_log");
  EXPECT_EQ(layout.name("lm_head.weight"), "lm_head.weight");
  EXPECT_TRUE(layout.skips("mtp.fc.weight") && layout.skips("model.visual.blocks.0.norm1.weight"));
  JsonObject flat = hub_config()["text_config"].as_object();
  flat["architectures"] = JsonArray{"Qwen3_5ForCausalLM"};
  const DecoderSpec spec = read_spec(flat);
  EXPECT_EQ(spec.layout.name("model.norm.weight"), "model.norm.weight");
  EXPECT_FALSE(spec.tied_head);
}

TEST(Qwen35, FieldsThatWouldChangeTheArithmeticAreRefused) {
  const auto refusal = [](const char* key, const Json& value) {
    return error_of([&] { read_spec(with(key, value)); });
  };
  EXPECT_EQ(refusal("attn_output_gate", false),
            "model: config field 'attn_output_gate' is false, model_type 'qwen3_5' is computed with "
            "true only");
  EXPECT_EQ(refusal("linear_conv_kernel_dim", 3),
            "model: config field 'linear_conv_kernel_dim' is 3, model_type 'qwen3_5' is computed "
            "with 4 only");
  EXPECT_EQ(refusal("mamba_ssm_dtype", "bfloat16"),
            "model: config field 'mamba_ssm_dtype' is \"bfloat16\", model_type 'qwen3_5' is "
            "computed with \"float32\" only");
  EXPECT_EQ(refusal("linear_num_value_heads", 3),
            "model: linear_num_value_heads is 3, it must be a multiple of linear_num_key_heads, 2");
  EXPECT_EQ(refusal("layer_types", JsonArray{"full_attention"}),
            "model: config field 'layer_types' must list 8 layers");
  EXPECT_EQ(refusal("layer_types", JsonArray(8, "sliding_attention")),
            "model: config field 'layer_types' holds \"sliding_attention\"; known: "
            "\"full_attention\", \"linear_attention\"");
  EXPECT_EQ(refusal("linear_value_head_dim", nullptr).substr(0, 13), "config field ");
}

}  // namespace
}  // namespace twinkle::model
