#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"
#include "twinkle/model/family.h"

namespace twinkle::model {
namespace {

JsonObject chatglm_config() {
  return {{"model_type", "chatglm"},
          {"architectures", JsonArray{"ChatGLMModel"}},
          {"padded_vocab_size", 160},
          {"vocab_size", 150},
          {"hidden_size", 48},
          {"num_layers", 3},
          {"ffn_hidden_size", 80},
          {"num_attention_heads", 4},
          {"multi_query_attention", true},
          {"multi_query_group_num", 2},
          {"kv_channels", 12},
          {"layernorm_epsilon", 1e-5},
          {"seq_length", 256},
          {"rope_ratio", 500},
          {"original_rope", true},
          {"rmsnorm", true},
          {"add_bias_linear", false},
          {"add_qkv_bias", true}};
}

TEST(ChatGlm, ItsFieldsSayWhatGlmsDo) {
  JsonObject config = chatglm_config();
  const DecoderSpec spec = read_spec(config);
  EXPECT_EQ(spec.vocab_size, 160) << "rows of the embedding";
  EXPECT_EQ(spec.num_layers(), 3);
  EXPECT_EQ(spec.rope.theta, 5e6);
  EXPECT_EQ(spec.rope.rotary_dim, 6);
  const AttentionSpec& a = spec.layers.back().attention();
  EXPECT_EQ(a.num_kv_heads, 2);
  EXPECT_TRUE(a.qkv_bias);
  EXPECT_EQ(a.projections, Projections::kStacked);
  EXPECT_EQ(spec.layout.name("model.layers.2.self_attn.qkv_proj.bias"),
            "transformer.encoder.layers.2.self_attention.query_key_value.bias");
  config["multi_query_attention"] = false;
  const DecoderSpec own = read_spec(config);  // keys of every head's own, by head
  EXPECT_EQ(own.layers.back().attention().num_kv_heads, 4);
  EXPECT_EQ(own.layers.back().attention().projections, Projections::kGrouped);
}

TEST(ChatGlm, WhatChangesItsArithmeticIsRefused) {
  const auto refuse = [](const char* key, Json value, const std::string& text) {
    JsonObject config = chatglm_config();
    config[key] = std::move(value);
    expect_error(text, [&] { read_spec(config); });
  };
  refuse("hidden_dropout", 0.1, "hidden_dropout is 0.1; only 0 is supported");
  refuse("rmsnorm", false, "'rmsnorm' is false; it changes the arithmetic");
  refuse("add_bias_linear", true, "'add_bias_linear' is true; it changes the arithmetic");
  refuse("post_layer_norm", false, "'post_layer_norm' is false; it changes the arithmetic");
  refuse("fp32_residual_connection", true,
         "'fp32_residual_connection' is true; it changes the arithmetic");
  refuse("pre_seq_len", 128, "'pre_seq_len' is 128; it changes the arithmetic");
  refuse("original_rope", nullptr, "'rope_ratio' is 500, and 'original_rope' is not true");
  refuse("rope_ratio", 0, "'rope_ratio' is 0, it must be finite and above 0.0001");
  refuse("multi_query_group_num", 3, "a multiple of multi_query_group_num, 3");
  refuse("kv_channels", 11, "kv_channels is 11, rope needs an even one");
  refuse("layernorm_epsilon", -1, "layernorm_epsilon is -1, it must be above 0");
  JsonObject config = chatglm_config();
  expect_error("value_head is set, but model_type 'chatglm' has no token classifier",
               [&] { read_spec(config, true); });
}

}  // namespace
}  // namespace twinkle::model
