#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"
#include "twinkle/model/routed_families/routed.h"
#include "twinkle/model/tiny_families.h"

namespace twinkle::model {
namespace {

// As on the hub, but for sizes.
JsonObject gpt_oss_config() {
  JsonObject c = tiny_config("gpt_oss");
  c["num_hidden_layers"] = 4;
  c["num_local_experts"] = 8;
  c["num_experts_per_tok"] = 3;
  c["experts_per_token"] = 3;
  c["initial_context_length"] = 4096;
  c["router_aux_loss_coef"] = 0.9;
  c["output_router_logits"] = false;
  c["attention_bias"] = true;
  c["swiglu_limit"] = 6.5;
  c["sliding_window"] = 9;
  c["rope_theta"] = 150000;
  c["rope_scaling"] = JsonObject{{"beta_fast", 32.0},   {"beta_slow", 1.0},
                                 {"factor", 32.0},      {"original_max_position_embeddings", 4096},
                                 {"rope_type", "yarn"}, {"truncate", false}};
  return c;
}

std::vector<int64_t> windows_of_gpt_oss(const DecoderSpec& spec) {
  std::vector<int64_t> out;
  for (const LayerSpec& layer : spec.layers) out.push_back(layer.attention().window);
  return out;
}

TEST(GptOss, HasSinksBiasesAndClampedExpertsInEveryLayer) {
  JsonObject c = gpt_oss_config();
  const DecoderSpec spec = read_spec(c);
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& a = layer.attention();
    EXPECT_TRUE(a.sinks && a.qkv_bias && a.o_bias);
    EXPECT_FALSE(a.qk_norm);
    ExpertsSpec want{.num_experts = 8, .intermediate_size = 80};
    want.route.top_k = 3;
    want.route.normalise = true;
    want.aux_loss = nn::AuxLoss::kAllLayers;
    want.clamped = kernels::ClampedSwiglu{.limit = 6.5, .alpha = 1.702};
    ASSERT_TRUE(layer.experts());
    EXPECT_EQ(*layer.experts(), want);
  }
  c["swiglu_alpha"] = 1.5;
  c["attention_bias"] = false;
  const LayerSpec other = read_spec(c).layers[1];
  EXPECT_EQ(other.experts()->clamped->alpha, 1.5);
  EXPECT_FALSE(other.attention().qkv_bias || other.attention().o_bias);
}

TEST(GptOss, AWindowIsThatOfEvenLayersUnlessLayerTypesSayOtherwise) {
  JsonObject c = gpt_oss_config();
  EXPECT_EQ(windows_of_gpt_oss(read_spec(c)), (std::vector<int64_t>{9, 0, 9, 0}));
  c["layer_types"] =
      JsonArray{"full_attention", "full_attention", "sliding_attention", "full_attention"};
  EXPECT_EQ(windows_of_gpt_oss(read_spec(c)), (std::vector<int64_t>{0, 0, 9, 0}));
  c.erase("layer_types");
  c.erase("sliding_window");
  EXPECT_EQ(windows_of_gpt_oss(read_spec(c)), (std::vector<int64_t>{128, 0, 128, 0}));
  c["sliding_window"] = nullptr;
  EXPECT_EQ(windows_of_gpt_oss(read_spec(c)), (std::vector<int64_t>{0, 0, 0, 0}));
  c["layer_types"] = JsonArray{"full_attention"};
  c["sliding_window"] = 9;
  EXPECT_EQ(invalid_of([&] { read_spec(c); }),
            "model: config field 'layer_types' must list 4 layers");
}

TEST(GptOss, ItsRopeIsYarnOfWholeTurnsWhereNothingIsSaid) {
  JsonObject c = gpt_oss_config();
  const auto expect = [](const nn::RopeSpec& rope, double theta, double factor) {
    EXPECT_EQ(rope.kind, nn::RopeKind::kYarn);
    EXPECT_FALSE(rope.truncate);
    EXPECT_EQ(rope.theta, theta);
    EXPECT_EQ(rope.factor, factor);
    EXPECT_EQ(rope.original_max_position, 4096);
  };
  expect(read_spec(c).rope, 150000, 32);
  c.erase("rope_scaling");
  c.erase("rope_theta");
  expect(read_spec(c).rope, 150000, 32);
  c["rope_parameters"] = JsonObject{{"rope_type", "yarn"},
                                    {"factor", 8},
                                    {"truncate", false},
                                    {"original_max_position_embeddings", 4096}};
  expect(read_spec(c).rope, 150000, 8);
  c["rope_parameters"].as_object()["rope_theta"] = 5000;
  expect(read_spec(c).rope, 5000, 8);
  c["rope_scaling"] = JsonObject();  // an empty one says nothing
  expect(read_spec(c).rope, 5000, 8);
  c.erase("rope_parameters");
  expect(read_spec(c).rope, 150000, 32);
  c.erase("rope_scaling");
  c["rope_parameters"] = JsonObject();  // this one is there
  EXPECT_EQ(read_spec(c).rope.kind, nn::RopeKind::kDefault);
  EXPECT_EQ(read_spec(c).rope.theta, 150000);
}

TEST(GptOss, ItsRoutersHaveANameOfTheirOwnAndItsStacksAreWhole) {
  const Layout layout = read_spec(gpt_oss_config()).layout;
  EXPECT_EQ(layout.name("model.layers.1.mlp.gate.bias"), "model.layers.1.mlp.router.bias");
  EXPECT_TRUE(layout.parts_of("model.layers.1.mlp.experts.gate_up_proj", 8).empty());
  for (const char* norm : {"model.norm.weight", "model.layers.3.input_layernorm.weight"})
    EXPECT_TRUE(layout.is_in_float32(norm)) << norm;
  EXPECT_FALSE(layout.is_in_float32("model.layers.3.self_attn.sinks"));
}

TEST(GptOss, WeightsAreOfTheShapesThatItsFilesHave) {
  const DecoderSpec spec = read_spec(gpt_oss_config());
  std::map<std::string, std::vector<int64_t>> shapes;
  Parts parts(
      [&](const std::string& name, const std::vector<int64_t>& shape) {
        shapes[name] = shape;
        return at::zeros(shape);
      },
      spec.layout);
  parts.path = "model.layers.0.";
  const Layer layer(spec, spec.layers[0], parts);
  using Shape = std::vector<int64_t>;
  const std::string at = "model.layers.0.";
  EXPECT_EQ(shapes[at + "self_attn.sinks"], (Shape{4}));
  EXPECT_EQ(shapes[at + "self_attn.o_proj.bias"], (Shape{48}));
  EXPECT_EQ(shapes[at + "mlp.router.weight"], (Shape{8, 48}));
  EXPECT_EQ(shapes[at + "mlp.router.bias"], (Shape{8}));
  EXPECT_EQ(shapes[at + "mlp.experts.gate_up_proj"], (Shape{8, 48, 160}));
  EXPECT_EQ(shapes[at + "mlp.experts.gate_up_proj_bias"], (Shape{8, 160}));
  EXPECT_EQ(shapes[at + "mlp.experts.down_proj"], (Shape{8, 80, 48}));
  EXPECT_EQ(shapes[at + "mlp.experts.down_proj_bias"], (Shape{8, 48}));
  for (const NamedWeight& weight : parts.weights) {
    const bool matrix = weight.value->dim() > 1 && !weight.name.ends_with("_bias");
    EXPECT_EQ(weight.decay, matrix) << weight.name;
  }
  for (const NamedLinear& linear : parts.linears)
    EXPECT_EQ(linear.turned, linear.path.find(".experts.") != std::string::npos) << linear.path;
}

TEST(GptOss, FieldsThatCannotBeAreRefused) {
  JsonObject c = gpt_oss_config();
  c["swiglu_limit"] = 0;
  EXPECT_EQ(
      invalid_of([&] { read_spec(c); }),
      "model: config field 'swiglu_limit' is 0, it must be at least 0.001 and at most 1000000");
  c = tiny_config("qwen3");
  c["swiglu_limit"] = 7.0;
  EXPECT_EQ(invalid_of([&] { read_spec(c); }).substr(0, 43),
            "model: config field 'swiglu_limit' is 7E0; ");
  c = gpt_oss_config();
  c["quantization_config"] =
      JsonObject{{"quant_method", "mxfp4"}};  // the weights are not quantized
  EXPECT_NE(invalid_of([&] { read_spec(c); }).find("\"mxfp4\" for these weights"),
            std::string::npos);
}

TEST(GptOss, ModelsThatDifferInWhatItAloneHasAreToldApart) {
  JsonObject c = gpt_oss_config();
  const DecoderSpec spec = read_spec(c);
  c["swiglu_limit"] = 7;
  EXPECT_EQ(difference(spec, read_spec(c)), "swiglu_limit is 7E0, this model's is 6.5E0");
  DecoderSpec other = spec;
  other.layers[0].attention().sinks = false;
  EXPECT_EQ(difference(spec, other), "sinks is false, this model's is true");
}

TEST(GptOss, AnotherDeviceThanTheCpuIsRefusedByTheFamilysName) {
  const DecoderSpec spec = read_spec(gpt_oss_config());
  Parts parts(
      [](const std::string&, const std::vector<int64_t>& shape) {
        return at::empty(shape, at::device(at::kMeta));
      },
      spec.layout);
  EXPECT_EQ(invalid_of([&] { Layer(spec, spec.layers.back(), parts); }),
            "model: device is meta, but attention with sinks (gpt_oss) runs on the CPU only in "
            "this version; set the device to cpu");
}

}  // namespace
}  // namespace twinkle::model
