#include "twinkle/model/delta_families/gated_delta.h"

#include <gtest/gtest.h>

#include "twinkle/model/decoder.h"
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

JsonObject delta_with(const char* key, const Json& value) {
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
  const DecoderSpec listed =
      read_spec(delta_with("layer_types", parse_json(R"(["full_attention", "linear_attention",
      "linear_attention", "linear_attention", "linear_attention", "linear_attention",
      "linear_attention", "linear_attention"])",
                                                     "types")));
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
    return error_of([&] { read_spec(delta_with(key, value)); });
  };
  EXPECT_EQ(refusal("attn_output_gate", false),
            "model: config field 'attn_output_gate' is false; known: true");
  EXPECT_EQ(refusal("linear_conv_kernel_dim", 3),
            "model: config field 'linear_conv_kernel_dim' is 3; known: 4");
  EXPECT_EQ(refusal("mamba_ssm_dtype", "bfloat16"),
            "model: config field 'mamba_ssm_dtype' is \"bfloat16\"; known: \"float32\"");
  EXPECT_EQ(refusal("output_gate_type", "sigmoid"),
            "model: config field 'output_gate_type' is \"sigmoid\"; known: \"silu\", \"swish\", "
            "which are one");
  for (const char* silu : {"silu", "swish"})
    EXPECT_EQ(refusal("output_gate_type", silu), "no error") << silu;
  EXPECT_EQ(refusal("linear_num_value_heads", 3),
            "model: linear_num_value_heads is 3, it must be a multiple of linear_num_key_heads, 2");
  EXPECT_EQ(refusal("layer_types", JsonArray{"full_attention"}),
            "model: config field 'layer_types' must list 8 layers");
  EXPECT_EQ(refusal("layer_types", JsonArray(8, "sliding_attention")),
            "model: config field 'layer_types' holds \"sliding_attention\"; known: "
            "\"full_attention\", \"linear_attention\"");
  EXPECT_EQ(refusal("linear_value_head_dim", nullptr),
            "json: field 'linear_value_head_dim' is null, expected an integer");
  JsonObject quantised = hub_config();
  quantised["quantization_config"] = JsonObject{{"quant_method", "fp8"}};
  EXPECT_EQ(
      error_of([&] { read_spec(quantised); }),
      "model: quantization_config has the quant_method \"fp8\" for these weights, which is not "
      "supported; use an unquantised checkpoint, fp8 weights with weight_block_size or a GGUF "
      "file");
  EXPECT_EQ(refusal("num_experts", 8),
            "model: config field 'num_experts' is 8; it changes the arithmetic, and model_type "
            "'qwen3_5' is computed without it");
}

TEST(Qwen35, DecaysAreFloat32InABfloat16Model) {
  const JsonObject config = hub_config();
  const ScratchDir dir;
  write_tiny(dir.path(), config, drawn_weights(config));
  const Checkpoint files = Checkpoint::open(dir.path());
  Decoder decoder(read_spec(config), files, at::kBFloat16);
  int64_t count = 0;
  for (const NamedWeight& w : decoder.weights()) {
    const bool decays = w.name.ends_with(".A_log") || w.name.ends_with(".dt_bias");
    EXPECT_EQ(w.value->scalar_type(), decays ? at::kFloat : at::kBFloat16) << w.name;
    if (!decays) continue;
    ++count;
    EXPECT_TRUE(at::equal(*w.value, to_float32(files.at(w.name)))) << w.name;
  }
  EXPECT_EQ(count, 2 * 6);
}

// By the layer that is made; no weight has numbers.
std::string delta_on_a_device(const Json& config, size_t layer) {
  const DecoderSpec spec = read_spec(config);
  Parts parts(
      [](const std::string&, const std::vector<int64_t>& shape) {
        return at::empty(shape, at::device(at::kMeta));
      },
      spec.layout);
  return error_of([&] { Layer(spec, spec.layers[layer], parts); });
}

TEST(Qwen35, AnotherDeviceThanTheCpuIsRefusedByTheFamilysName) {
  EXPECT_EQ(delta_on_a_device(hub_config(), 0),
            "model: device is meta, but linear attention (qwen3_5) runs on the CPU only in this "
            "version; set the device to cpu");
  EXPECT_EQ(delta_on_a_device(hub_config(), 3),
            "model: device is meta, but attention with a gate on its output (qwen3_5) runs on the "
            "CPU only in this version; set the device to cpu");
}

JsonObject moe_config() {
  JsonObject config = hub_config();
  config["model_type"] = "qwen3_5_moe";
  config["architectures"] = JsonArray{"Qwen3_5MoeForConditionalGeneration"};
  JsonObject& text = config["text_config"].as_object();
  text["model_type"] = "qwen3_5_moe_text";
  text.erase("intermediate_size");
  text["num_experts"] = 8;
  text["num_experts_per_tok"] = 3;
  text["moe_intermediate_size"] = 24;
  text["shared_expert_intermediate_size"] = 40;
  text["norm_topk_prob"] = false;
  return config;
}

TEST(Qwen35Moe, HasExpertsWithNormedWeightsAndAGatedSharedOneInEveryLayer) {
  const DecoderSpec spec = read_spec(moe_config());
  ExpertsSpec want{.num_experts = 8, .intermediate_size = 24};
  want.route.top_k = 3;
  want.route.normalise = true;
  want.aux_loss = nn::AuxLoss::kAllLayers;
  want.shared_size = 40;
  want.shared_gate = true;
  for (const LayerSpec& layer : spec.layers) EXPECT_EQ(std::get<ExpertsSpec>(layer.mlp), want);
  EXPECT_TRUE(std::holds_alternative<DeltaSpec>(spec.layers[0].mixer));
  JsonObject text = moe_config()["text_config"].as_object();
  text["architectures"] = JsonArray{"Qwen3_5MoeForCausalLM"};
  EXPECT_EQ(read_spec(text).layout.name("model.norm.weight"), "model.norm.weight");
}

TEST(Qwen35Moe, LinearsOfExpertsHaveTheCheckpointsPaths) {
  const JsonObject config = moe_config();
  const ScratchDir dir;
  write_tiny(dir.path(), config, drawn_weights(config));
  Decoder decoder(read_spec(config), Checkpoint::open(dir.path()), at::kFloat);
  for (const NamedLinear& linear : decoder.linears()) {
    EXPECT_TRUE(linear.path == kHead || linear.path.starts_with("model.language_model.layers."))
        << linear.path;
  }
}

TEST(Qwen3Next, HasTheRulesProjectionsByKeyHeadAndTheLayersThatAreRouted) {
  JsonObject config = moe_config()["text_config"].as_object();
  config["model_type"] = "qwen3_next";
  config["architectures"] = JsonArray{"Qwen3NextForCausalLM"};
  config["intermediate_size"] = 80;
  config["mlp_only_layers"] = JsonArray{1};
  const DecoderSpec spec = read_spec(config);
  EXPECT_TRUE(std::get<DeltaSpec>(spec.layers[0].mixer).by_key_head);
  EXPECT_FALSE(std::get<ExpertsSpec>(spec.layers[0].mlp).route.normalise);
  EXPECT_EQ(spec.layers[1].gated_mlp().intermediate_size, 80);
  config.erase("norm_topk_prob");
  EXPECT_TRUE(std::get<ExpertsSpec>(read_spec(config).layers[0].mlp).route.normalise);
}

TEST(Qwen35Moe, AnotherDeviceThanTheCpuIsRefusedByTheFamilysName) {
  JsonObject next = moe_config()["text_config"].as_object();
  next["model_type"] = "qwen3_next";
  next["architectures"] = JsonArray{"Qwen3NextForCausalLM"};
  next["intermediate_size"] = 80;
  for (const auto& [config, name] :
       {std::pair{moe_config(), "(qwen3_5_moe)"}, std::pair{next, "(qwen3_next)"}}) {
    for (const size_t layer : {0, 3}) {
      const std::string text = delta_on_a_device(config, layer);
      EXPECT_TRUE(text.starts_with("model: device is meta, ") && text.find(name) != text.npos)
          << text;
    }
  }
}

}  // namespace
}  // namespace twinkle::model
