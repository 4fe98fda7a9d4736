#include <gtest/gtest.h>

#include <cmath>

#include "twinkle/io/gguf/gguf_for_test.h"

namespace twinkle {
namespace {

TEST(GgufConfig, SaysWhatConfigJsonWould) {
  const ScratchDir dir;
  write_text(dir / "x.gguf", tiny("llama").file());
  const Json expected{{"architectures", JsonArray{"LlamaForCausalLM"}},
                      {"model_type", "llama"},
                      {"hidden_size", 8},
                      {"num_hidden_layers", 1},
                      {"num_attention_heads", 2},
                      {"num_key_value_heads", 1},
                      {"head_dim", 4},
                      {"intermediate_size", 3},
                      {"rms_norm_eps", 1e-5},
                      {"vocab_size", 2},
                      {"max_position_embeddings", 64},
                      {"tie_word_embeddings", true},
                      {"hidden_act", "silu"},
                      {"torch_dtype", "bfloat16"},
                      {"attention_bias", false},
                      {"mlp_bias", false},
                      {"rope_theta", 1e5},
                      {"eos_token_id", 2}};
  EXPECT_EQ(gguf_config(dir / "x.gguf"), expected) << pretty(gguf_config(dir / "x.gguf"));
}

TEST(GgufConfig, NamesTheRopeScaling) {
  const ScratchDir dir;
  const auto scaling = [&](const Gguf& gguf) {
    write_text(dir / "x.gguf", gguf.file());
    const Json config = gguf_config(dir / "x.gguf");
    const Json* found = find(config, "rope_scaling");
    return found ? *found : Json();
  };
  Gguf yarn = tiny("qwen2");
  yarn.add("qwen2.rope.scaling.type", std::string("yarn"));
  yarn.add("qwen2.rope.scaling.factor", 4.0F);
  yarn.add("qwen2.rope.scaling.original_context_length", uint32_t{32});
  EXPECT_EQ(
      scaling(yarn),
      (Json{{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}}));
  Gguf linear = tiny("llama");
  linear.add("llama.rope.scaling.type", std::string("linear"));
  linear.add("llama.rope.scaling.factor", 2.0F);
  EXPECT_EQ(scaling(linear), (Json{{"rope_type", "linear"}, {"factor", 2.0}}));
  for (const char* key : {"llama.rope.scaling.factor", "llama.rope.scale_linear"}) {
    Gguf untyped = tiny("llama");  // llama.cpp takes it for linear
    untyped.add(key, 2.0F);
    EXPECT_EQ(scaling(untyped), (Json{{"rope_type", "linear"}, {"factor", 2.0}})) << key;
  }
  Gguf plain = tiny("llama");
  plain.add("llama.rope.scaling.factor", 1.0F);
  EXPECT_EQ(scaling(plain), Json());
  yarn.add("qwen2.rope.scaling.attn_factor", 0.5F);
  EXPECT_EQ(get<double>(scaling(yarn), "attention_factor"), 0.5 * (0.1 * std::log(4.0) + 1));
  Gguf llama3 = tiny("llama");  // theta 1e5: waves of 6.3, 63, 628, 6283 and 62832 tokens
  const double smooth = (8192 / (2 * M_PI * 1000) - 1) / 3;
  const auto blend = static_cast<float>(1 / ((1 - smooth) / 8 + smooth));
  llama3.tensor("rope_freqs.weight", {5}, 0, floats({1, 1, 1, blend, 8}));
  EXPECT_EQ(scaling(llama3), (Json{{"rope_type", "llama3"},
                                   {"factor", 8.0},
                                   {"low_freq_factor", 1.0},
                                   {"high_freq_factor", 4.0},
                                   {"original_max_position_embeddings", 8192}}));
}

// llama.cpp reads these of a file, and a dense model here does not compute them.
TEST(GgufConfig, RefusesKeysThatChangeTheArithmetic) {
  const auto with = [](const std::string& key, const auto& value) {
    Gguf gguf = tiny("qwen3");
    gguf.add("qwen3." + key, value);
    return error_of_file(gguf.file());
  };
  Gguf bidirectional = tiny("qwen3");
  bidirectional.add("qwen3.attention.causal", 7, raw<uint8_t>(0));  // false
  const std::string why = "; it changes the arithmetic, and a dense model is computed without it";
  EXPECT_EQ(error_of_file(bidirectional.file()),
            "io: F: metadata 'qwen3.attention.causal' is false" + why);
  EXPECT_EQ(with("expert_count", uint32_t{8}), "io: F: metadata 'qwen3.expert_count' is 8" + why);
  for (const char* key :
       {"nextn_predict_layers", "expert_used_count", "expert_group_count",
        "expert_group_used_count", "expert_shared_count", "rope.scaling.alpha",
        "attention.sliding_window", "attention.clamp_kqv", "attention.max_alibi_bias",
        "attention.scale", "attention.output_scale", "attention.value_scale",
        "attention.temperature_scale", "attention.shared_kv_layers", "attn_logit_softcapping",
        "final_logit_softcapping", "logit_scale", "residual_scale", "embedding_scale"})
    EXPECT_NE(with(key, 2.0F).find(std::string("'qwen3.") + key + "' is 2"), std::string::npos)
        << key;
  EXPECT_EQ(with("rope.dimension_count", uint32_t{2}),
            "io: F: metadata 'qwen3.rope.dimension_count' is 2, it must be a head's whole size, 4");
  EXPECT_EQ(with("attention.value_length", uint32_t{2}),
            "io: F: metadata 'qwen3.attention.value_length' is 2, it must be a key's, 4");
  EXPECT_EQ(with("rope.scaling.attn_factor", 0.5F),
            "io: F: metadata 'qwen3.rope.scaling.attn_factor' is 0.5, it must be 1, or the "
            "scaling's type yarn");
  for (const char* key : {"logit_scale", "attention.causal"})
    EXPECT_EQ(with(key, 1.0F), "no error") << key;
  EXPECT_EQ(with("expert_count", uint32_t{0}), "no error");
}

TEST(GgufConfig, RefusesWhatItCannotName) {
  EXPECT_EQ(error_of_file(tiny("gemma").file()),
            "io: F: architecture is 'gemma', it must be one of llama, qwen2, qwen3");
  EXPECT_EQ(error_of_file(Gguf().file()),
            "io: F: metadata 'general.architecture' must be a string");
  Gguf bare;
  bare.add("general.architecture", std::string("llama"));
  EXPECT_EQ(error_of_file(bare.file()),
            "io: F: there is no tensor 'token_embd.weight' of two dims");
  bare.tensor("token_embd.weight", {1, 2}, 0, floats({1, 2}));
  EXPECT_EQ(error_of_file(bare.file()),
            "io: F: metadata 'llama.embedding_length' must be an integer of at least 1");
  Gguf scaled = tiny("llama");
  scaled.add("llama.rope.scaling.type", std::string("magic"));
  EXPECT_EQ(error_of_file(scaled.file()),
            "io: F: metadata 'llama.rope.scaling.type' is 'magic', it must be one of none, linear, "
            "yarn");
  Gguf unscaled = tiny("llama");
  unscaled.add("llama.rope.scaling.type", std::string("linear"));
  EXPECT_EQ(error_of_file(unscaled.file()),
            "io: F: metadata 'llama.rope.scaling.factor' must be a float");
  Gguf freqs = tiny("llama");
  freqs.tensor("rope_freqs.weight", {2}, 0, floats({3, 8}));
  EXPECT_EQ(error_of_file(freqs.file()),
            "io: F: rope_freqs.weight[0] is 3, Llama 3's scaling would have 1: no other scaling "
            "is supported");
  Gguf expert = tiny("llama");
  expert.tensor("blk.0.ffn_gate_inp.weight", {1}, 0, floats({3}));
  EXPECT_EQ(
      error_of_file(expert.file()),
      "io: F: tensor 'blk.0.ffn_gate_inp.weight' does not belong to a dense llama, qwen2 or qwen3 "
      "model");
  Gguf rows = tiny("llama");
  rows.tensor("blk.0.attn_q.weight", {1, 3}, 0, floats({1, 2, 3}));
  EXPECT_EQ(error_of_file(rows.file()),
            "io: F: tensor 'blk.0.attn_q.weight' has 3 rows, they must be a multiple of twice 2 "
            "heads");
}

}  // namespace
}  // namespace twinkle
