#include "twinkle/model/family.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "twinkle/model/tiny_families.h"

namespace twinkle::model {
namespace {

std::string refusal(const JsonObject& config) {
  return error_of([&] { read_spec(config); });
}

std::vector<int64_t> windows_of(const DecoderSpec& spec) {
  std::vector<int64_t> windows;
  for (const LayerSpec& layer : spec.layers) windows.push_back(layer.attention().window);
  return windows;
}

JsonObject with(const char* key, Json value, JsonObject config = tiny_config()) {
  config[key] = std::move(value);
  return config;
}

JsonObject with_rope(const char* key, const char* text) {
  return with(key, parse_json(text, "rope"));
}

TEST(Family, TheListHoldsEveryFamilyOnceWithAnArchitecture) {
  std::set<std::string> names;
  for (const Family& family : families()) {
    EXPECT_TRUE(names.insert(family.name).second) << family.name;
    EXPECT_FALSE(family.architectures.empty()) << family.name;
    EXPECT_TRUE(family.spec) << family.name;
  }
  EXPECT_EQ(names,
            (std::set<std::string>{
                "llama",       "qwen2",     "qwen3",     "mistral",     "glm",        "glm4",
                "chatglm",     "internlm2", "internlm3", "qwen3_moe",   "qwen2_moe",  "mixtral",
                "deepseek",    "glm4_moe",  "qwen3_5",   "qwen3_5_moe", "qwen3_next", "deepseek_v2",
                "deepseek_v3", "gpt_oss",   "gemma2",    "gemma3",      "phi3"}));
}

// All families, as an error lists them.
std::string known() {
  std::string out;
  for (const Family& family : families()) out += (out.empty() ? "" : ", ") + family.name;
  return out;
}

TEST(Family, SizesComeFromTheConfig) {
  const DecoderSpec spec = read_spec(tiny_config());
  EXPECT_EQ(spec.family, "llama");
  EXPECT_EQ(spec.vocab_size, 131);
  EXPECT_EQ(spec.hidden_size, 48);
  EXPECT_EQ(spec.num_layers(), 2);
  EXPECT_EQ(spec.layers.back().gated_mlp().intermediate_size, 80);
  EXPECT_EQ(spec.max_positions, 256);
  EXPECT_EQ(spec.norm.eps, 1e-5);
  EXPECT_TRUE(spec.tied_head);
  EXPECT_EQ(spec.layers.back().attention().num_heads, 4);
  EXPECT_EQ(spec.layers.back().attention().num_kv_heads, 2);
  EXPECT_EQ(spec.layers.back().attention().head_dim, 12);
}

TEST(Family, AbsentFieldsHaveTransformersDefaults) {
  JsonObject config = tiny_config();
  for (const char* key : {"num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta",
                          "tie_word_embeddings", "architectures"})
    config.erase(key);
  const DecoderSpec spec = read_spec(config);
  EXPECT_EQ(spec.layers.back().attention().num_kv_heads, 4);
  EXPECT_EQ(spec.layers.back().attention().head_dim, 48 / 4);
  EXPECT_EQ(spec.norm.eps, 1e-6);
  EXPECT_EQ(spec.rope.theta, 10000);
  EXPECT_FALSE(spec.tied_head);
  EXPECT_EQ(windows_of(spec), std::vector<int64_t>(2, 0));
}

// The defaults of a family's class in transformers, where config.json has no value; of internlm2
// and deepseek, whose code lies on the hub, what that has.
TEST(Family, AbsentFieldsHaveTheDefaultsOfTheFamilysOwnClass) {
  const struct {
    const char* family;
    int64_t num_kv_heads, head_dim, window;
    double eps;
  } cases[] = {{"llama", 32, 2, 0, 1e-6},        {"qwen2", 32, 2, 0, 1e-6},
               {"qwen3", 32, 128, 0, 1e-6},      {"mistral", 8, 2, 4096, 1e-6},
               {"glm", 2, 128, 0, 1.5625e-7},    {"glm4", 2, 128, 0, 1.5625e-7},
               {"internlm2", 32, 2, 0, 1e-6},    {"internlm3", 2, 128, 0, 1e-5},
               {"qwen3_moe", 4, 2, 0, 1e-6},     {"qwen2_moe", 16, 2, 0, 1e-6},
               {"mixtral", 8, 2, 0, 1e-5},       {"deepseek", 32, 2, 0, 1e-6},
               {"glm4_moe", 8, 4, 0, 1e-5},      {"qwen3_5", 4, 256, 0, 1e-6},
               {"qwen3_5_moe", 2, 256, 0, 1e-6}, {"qwen3_next", 2, 256, 0, 1e-6},
               {"gpt_oss", 8, 64, 0, 1e-5},      {"gemma2", 4, 256, 0, 1e-6},
               {"gemma3", 4, 256, 0, 1e-6},      {"phi3", 32, 2, 0, 1e-5}};
  for (const auto& [family, num_kv_heads, head_dim, window, eps] : cases) {
    JsonObject config = tiny_family(family);
    if (refusal(config) != "no error") config = tiny_config(family);
    config["num_attention_heads"] = 32;
    config["hidden_size"] = family == std::string("glm4_moe") ? 128 : 64;  // half of a head turns
    config["layer_types"] = JsonArray{"full_attention", "full_attention"};
    for (const char* key : {"num_key_value_heads", "head_dim", "rms_norm_eps"}) config.erase(key);
    const DecoderSpec spec = read_spec(config);
    const AttentionSpec& a = spec.layers.back().attention();
    EXPECT_EQ(a.num_kv_heads, num_kv_heads) << family;
    EXPECT_EQ(a.head_dim, head_dim) << family;
    EXPECT_EQ(a.window, window) << family;
    EXPECT_EQ(spec.norm.eps, eps) << family;
    config["num_key_value_heads"] = nullptr;
    EXPECT_EQ(read_spec(config).layers.back().attention().num_kv_heads, 32) << family;
  }
}

TEST(Family, LatentAttentionWithoutARankOfItsQueriesHasThatOfTheClass) {
  for (const std::string family : {"deepseek_v2", "deepseek_v3", "deepseek"}) {
    JsonObject config = tiny_family(family == "deepseek" ? "deepseek_v2" : family);
    set_fields(config, {{"model_type", family}, {"architectures", nullptr}});
    config.erase("q_lora_rank");
    const auto rank = [&] {
      return std::get<LatentSpec>(read_spec(config).layers.back().mixer).q_rank;
    };
    EXPECT_EQ(rank(), 1536) << family;
    config["q_lora_rank"] = nullptr;
    EXPECT_EQ(rank(), 0) << family;
  }
}

// The first windowed layer is an index: -1 was written before the list.
TEST(Family, WindowsBeginAtALayer) {
  JsonObject config = with("use_sliding_window", true, tiny_config("qwen2"));
  config["sliding_window"] = 3;
  for (const int64_t first : {int64_t{-1}, int64_t{-1000}, std::numeric_limits<int64_t>::min()}) {
    config["max_window_layers"] = first;
    EXPECT_EQ(refusal(config), "model: config field 'max_window_layers' is " +
                                   std::to_string(first) + ", it must be at least 0");
  }
  config["max_window_layers"] = int64_t{1} << 62;
  EXPECT_EQ(windows_of(read_spec(config)), std::vector<int64_t>(2, 0));
}

TEST(Family, ANormsEpsilonIsSmall) {
  for (const double eps : {0.0, 1e30, static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    EXPECT_TRUE(refusal(with("rms_norm_eps", eps)).starts_with("model: rms_norm_eps is ")) << eps;
  }
}

TEST(Family, UnknownTypesArchitecturesAndActivationsAreRefusedWithWhatThereIs) {
  EXPECT_EQ(refusal(with("model_type", "mamba")),
            "model: model_type 'mamba' is not known; known: " + known());
  JsonObject none = tiny_config();
  none.erase("model_type");
  EXPECT_EQ(refusal(none), "model: model_type is missing; known: " + known());
  EXPECT_EQ(refusal(with("architectures", JsonArray{"LlamaForMaskedLM"})),
            "model: architecture \"LlamaForMaskedLM\" of model_type 'llama' is not "
            "known; known: LlamaForCausalLM");
  EXPECT_EQ(refusal(with("hidden_act", "gelu")),
            "model: hidden_act 'gelu' is not known; known: silu, swish, which are one");
  EXPECT_EQ(refusal(with("hidden_act", "swish")), "no error");
}

TEST(Family, WhatWouldChangeTheArithmeticIsRefused) {
  EXPECT_EQ(refusal(with("attention_dropout", 0.1)),
            "model: attention_dropout is 0.1; only 0 is supported: set it to 0 in config.json");
  EXPECT_EQ(refusal(with("pretraining_tp", 2)),
            "model: config field 'pretraining_tp' is 2; known: 1");
  EXPECT_EQ(
      refusal(with("quantization_config", JsonObject{{"bits", 4}})),
      "model: quantization_config has the quant_method null for these weights, which is not "
      "supported; use an unquantised checkpoint, fp8 weights with weight_block_size or a GGUF "
      "file");
  EXPECT_EQ(
      refusal(with("quantization_config", JsonObject{{"quant_method", "awq"}})),
      "model: quantization_config has the quant_method \"awq\" for these weights, which is not "
      "supported; use an unquantised checkpoint, fp8 weights with weight_block_size or a GGUF "
      "file");
  EXPECT_EQ(refusal(with("partial_rotary_factor", 0.5, with_rope("rope_scaling", "{}"))),
            "model: config field 'partial_rotary_factor' is 5E-1; it changes the arithmetic, and "
            "model_type 'llama' is computed without it");
  EXPECT_EQ(refusal(with("partial_rotary_factor", 0.5)),
            "model: config field 'partial_rotary_factor' is 5E-1; it changes the arithmetic, and "
            "model_type 'llama' is computed without it");
}

TEST(Family, OptionsOfOtherDecodersAreRefusedByNameUnlessTheyChangeNothing) {
  const struct {
    const char* key;
    Json changes, neutral;
  } cases[] = {{"attention_multiplier", 0.0883, nullptr},
               {"logit_scale", 0.0625, 1.0},
               {"embedding_multiplier", 12, 1},
               {"final_logit_softcapping", 30.0, nullptr},
               {"rope_interleaved", true, false},
               {"use_mrope", true, false},
               {"rotary_pct", 0.25, 1.0},
               {"no_rope_layers", JsonArray{1, 0}, JsonArray{}},
               {"num_local_experts", 8, 0},
               {"is_causal", false, true},
               {"alibi", "yes", false},
               {"partial_rotary_factor", 0.25, 1.0},
               {"scoring_func", "sigmoid", nullptr},
               {"attn_output_gate", true, false},
               {"add_bias_linear", true, false},
               {"per_layer_config", JsonObject{{"1", JsonObject{{"head_dim", 8}}}}, nullptr},
               {"per_layer_config", JsonObject{{"0", JsonObject{{"head_dim", 8}}}}, JsonObject()},
               {"rmsnorm", false, true}};
  for (const std::string family : {"llama", "qwen2", "qwen3"}) {
    for (const auto& [key, changes, neutral] : cases) {
      EXPECT_EQ(refusal(with(key, changes, tiny_config(family))),
                std::string("model: config field '") + key + "' is " +
                    boost::json::serialize(changes) +
                    "; it changes the arithmetic, and model_type '" + family +
                    "' is computed without it");
      EXPECT_EQ(refusal(with(key, neutral, tiny_config(family))), "no error") << key;
    }
  }
}

// qwen3's norms are there whatever the field says, in transformers too, which does not know it.
TEST(Family, NormedQueriesAndKeysAreAskedForWhereTheFamilyHasThemAlone) {
  for (const std::string family : {"qwen3", "qwen3_moe"}) {
    JsonObject config = family == "qwen3" ? tiny_config(family) : tiny_family(family);
    const std::string begin = "model: config field 'use_qk_norm' is ";
    EXPECT_EQ(refusal(with("use_qk_norm", true, config)), "no error");
    EXPECT_EQ(refusal(with("use_qk_norm", false, config)), begin + "false; known: true");
  }
  for (const std::string family : {"llama", "qwen2"}) {
    EXPECT_EQ(refusal(with("use_qk_norm", true, tiny_config(family))),
              "model: config field 'use_qk_norm' is true; it changes the arithmetic, and "
              "model_type '" +
                  family + "' is computed without it");
    EXPECT_EQ(refusal(with("use_qk_norm", false, tiny_config(family))), "no error");
  }
}

TEST(Family, AnUnknownFieldOfTheRopeIsRefusedByName) {
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    EXPECT_EQ(refusal(with_rope(key, R"({"rope_type": "default", "mrope_section": [1, 2]})")),
              "model: the config's rope has the field 'mrope_section', which may change the "
              "arithmetic and is not supported");
    EXPECT_EQ(
        refusal(with_rope(key, R"({"type": "yarn", "factor": 2, "llama_4_scaling_beta": 1})")),
        "model: the config's rope has the field 'llama_4_scaling_beta', which may change the "
        "arithmetic and is not supported");
    EXPECT_EQ(refusal(with_rope(key, R"({"type": "yarn", "factor": 2, "finetuned": true})")),
              "no error");
    const char* spelled = R"({"type": "yarn", "factor": 2, "attn_factor": 0.9})";
    EXPECT_FALSE(read_spec(with_rope(key, spelled)).rope.attention_factor) << "as in transformers";
    EXPECT_EQ(refusal(with_rope(key, "3")), "model: the config's rope is 3, it must be an object");
  }
}

TEST(Family, ImpossibleSizesAreRefused) {
  for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size",
                          "max_position_embeddings", "num_attention_heads"}) {
    const std::string field = std::string("'") + key + "'";
    for (const int64_t bad : {int64_t{0}, int64_t{-3}}) {
      EXPECT_EQ(refusal(with(key, bad)), "model: config field " + field + " is " +
                                             std::to_string(bad) + ", it must be at least 1");
    }
    EXPECT_EQ(refusal(with(key, int64_t{1} << 40)),
              "model: config field " + field + " is 1099511627776, the limit is 1073741824");
    EXPECT_EQ(refusal(with(key, nullptr)),
              "json: field " + field + " is null, expected an integer");
    EXPECT_EQ(refusal(with(key, "many")),
              "json: field " + field + " is \"many\", expected an integer");
  }
  EXPECT_EQ(refusal(with("num_hidden_layers", 100000)),
            "model: config field 'num_hidden_layers' is 100000, the limit is 65536");
  EXPECT_EQ(refusal(with("num_key_value_heads", 3)),
            "model: num_attention_heads is 4, it must be a multiple of num_key_value_heads, 3");
  EXPECT_EQ(refusal(with("head_dim", 7)), "model: head_dim is 7, rope needs an even one");
  JsonObject thin = with("hidden_size", 3);
  thin.erase("head_dim");
  EXPECT_EQ(refusal(thin), "model: hidden_size is 3, too small for num_attention_heads, 4");
}

TEST(Family, WindowsFollowLayerTypesOrTheFirstWindowedLayer) {
  JsonObject config = with("num_hidden_layers", 4, tiny_config("qwen2"));
  config["sliding_window"] = 9;
  EXPECT_EQ(windows_of(read_spec(config)), std::vector<int64_t>(4, 0)) << "not used";
  config["use_sliding_window"] = true;
  config["max_window_layers"] = 3;
  EXPECT_EQ(windows_of(read_spec(config)), (std::vector<int64_t>{0, 0, 0, 9}));
  config["layer_types"] =
      JsonArray{"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  EXPECT_EQ(windows_of(read_spec(config)), (std::vector<int64_t>{9, 0, 9, 0}));
  config["layer_types"] = JsonArray{"full_attention"};
  EXPECT_EQ(refusal(config), "model: config field 'layer_types' must list 4 layers");
  config["layer_types"] = JsonArray{"full_attention", "full_attention", "chunked_attention", "x"};
  EXPECT_EQ(refusal(config),
            "model: config field 'layer_types' holds \"chunked_attention\"; known: "
            "\"full_attention\", \"sliding_attention\"");
  config["sliding_window"] = 0;
  EXPECT_EQ(refusal(config), "model: config field 'sliding_window' is 0, it must be at least 1");
}

TEST(Family, AWindowThatIsUsedAndNotSaidIsThatOfTheClass) {
  const struct {
    const char* family;
    std::vector<int64_t> windows;
  } cases[] = {{"qwen2", {0, 4096}},      {"qwen3", {0, 4096}},        {"qwen2_moe", {4096, 0}},
               {"mistral", {4096, 4096}}, {"qwen3_moe", {4096, 4096}}, {"mixtral", {0, 0}}};
  for (const auto& [family, windows] : cases) {
    const bool routed = std::string(family).ends_with("moe") || family == std::string("mixtral");
    JsonObject config = routed ? tiny_family(family) : tiny_config(family);
    config["use_sliding_window"] = true;
    config["max_window_layers"] = 1;
    EXPECT_EQ(windows_of(read_spec(config)), windows) << family;
    config["sliding_window"] = nullptr;
    EXPECT_EQ(windows_of(read_spec(config)), std::vector<int64_t>(2, 0)) << family;
  }
}

// In transformers the others' classes do not know the field.
TEST(Family, AFamilyWithoutWindowsRefusesThatOneIsUsed) {
  const std::set<std::string> readers = {"qwen2",     "qwen3",   "qwen2_moe",
                                         "qwen3_moe", "mistral", "mixtral"};
  for (const Family& family : families()) {
    JsonObject config = tiny_family(family.name);
    if (refusal(config) != "no error") config = tiny_config(family.name);
    const std::string before = refusal(config);
    config["sliding_window"] = 9;
    config["use_sliding_window"] = false;
    EXPECT_EQ(refusal(config), before) << family.name;
    config["use_sliding_window"] = true;
    EXPECT_EQ(refusal(config),
              readers.contains(family.name)
                  ? before
                  : "model: config field 'use_sliding_window' is true; it changes the arithmetic, "
                    "and model_type '" +
                        family.name + "' is computed without it");
  }
}

TEST(Family, RopeIsReadFromBothOfItsPlaces) {
  const auto rope = [](const char* key, const char* text) {
    return read_rope(with_rope(key, text));
  };
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    EXPECT_EQ(rope(key, R"({"rope_type": "default", "rope_theta": 5e5})").theta, 5e5);
    const auto linear = rope(key, R"({"type": "linear", "factor": 4})");
    EXPECT_EQ(linear.kind, nn::RopeKind::kLinear);
    EXPECT_EQ(linear.factor, 4);
    EXPECT_EQ(linear.theta, 10000);
    const auto llama3 = rope(key, R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
        "high_freq_factor": 4.5, "original_max_position_embeddings": 64})");
    EXPECT_EQ(llama3.kind, nn::RopeKind::kLlama3);
    EXPECT_EQ(llama3.high_freq_factor, 4.5);
    EXPECT_EQ(llama3.original_max_position, 64);
    const auto yarn = rope(key, R"({"rope_type": "yarn", "factor": 2, "beta_fast": 30,
        "beta_slow": 2, "truncate": false, "attention_factor": 1.5, "mscale": 0.7,
        "mscale_all_dim": 0.8})");
    EXPECT_EQ(yarn.kind, nn::RopeKind::kYarn);
    EXPECT_EQ(yarn.original_max_position, 256) << "max_position_embeddings where none is named";
    EXPECT_EQ(yarn.beta_fast, 30);
    EXPECT_EQ(yarn.beta_slow, 2);
    EXPECT_FALSE(yarn.truncate);
    EXPECT_EQ(yarn.attention_factor, 1.5);
    EXPECT_EQ(yarn.mscale, 0.7);
    EXPECT_EQ(yarn.mscale_all_dim, 0.8);
  }
  JsonObject both = with_rope("rope_scaling", R"({"rope_type": "linear", "factor": 4})");
  both["rope_parameters"] = parse_json(R"({"rope_type": "linear", "factor": 3})", "rope");
  EXPECT_EQ(read_rope(both).factor, 4) << "as in transformers";
  both["rope_scaling"] = JsonObject();
  EXPECT_EQ(read_rope(both).factor, 3) << "as in transformers";
}

TEST(Family, AWrongValueOfTheRopeIsRefusedByItsKey) {
  const std::string above = ", it must be finite and above ", has = "model: the config's rope has ";
  const struct {
    const char* fields;
    std::string why;
  } cases[] = {
      {R"("type": "default", "rope_theta": 1)", "model: config field 'rope_theta' is 1" + above},
      {R"("type": "linear", "factor": 0)", has + "'factor' 0" + above + "0"},
      {R"("type": "yarn", "factor": -1)", has + "'factor' -1" + above + "0"},
      {R"("type": "yarn", "factor": 1e999)", has + "'factor' inf" + above + "0"},
      {R"("type": "yarn", "factor": 2, "beta_fast": 0)", has + "'beta_fast' 0" + above + "0"},
      {R"("type": "yarn", "factor": 2, "beta_slow": -2)", has + "'beta_slow' -2" + above + "0"},
      {R"("type": "yarn", "factor": 2, "original_max_position_embeddings": -5)",
       "model: config field 'original_max_position_embeddings' is -5, it must be at least 1"},
      {R"("type": "llama3", "factor": 2, "low_freq_factor": 0, "high_freq_factor": 1)",
       has + "'low_freq_factor' 0" + above + "0"},
      {R"("type": "llama3", "factor": 2, "low_freq_factor": 4, "high_freq_factor": 1)",
       has + "'high_freq_factor' 1, it must be above its 'low_freq_factor', 4"}};
  for (const auto& [fields, why] : cases) {
    std::string rope = "{";
    rope.append(fields).append("}");
    const std::string said = refusal(with_rope("rope_parameters", rope.c_str()));
    EXPECT_TRUE(said.starts_with(why)) << said;
  }
  EXPECT_EQ(refusal(with("rope_theta", 0.5)),
            "model: config field 'rope_theta' is 0.5, it must be finite and above 1");
}

TEST(Family, UnknownRopeKindsAreRefusedEvenWithoutAFactor) {
  for (const char* text : {R"({"rope_type": "longrope", "long_factor": [1, 2]})",
                           R"({"type": "longrope", "factor": 2.0})"}) {
    EXPECT_EQ(
        refusal(with_rope("rope_scaling", text)),
        "model: rope kind 'longrope' is not known; known: default, dynamic, linear, yarn, llama3");
  }
  EXPECT_EQ(refusal(with_rope("rope_scaling", R"({"rope_type": "yarn"})")),
            "json: field 'factor' is missing");
}

}  // namespace
}  // namespace twinkle::model
