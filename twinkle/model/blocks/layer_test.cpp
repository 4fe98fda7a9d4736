#include "twinkle/model/blocks/layer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>

#include "twinkle/base/error_for_test.h"
#include "twinkle/model/family.h"
#include "twinkle/model/tiny_families.h"

namespace twinkle::model {
namespace {

// A layer of random weights, and how often each was read.
struct DrawnLayer {
  explicit DrawnLayer(const DecoderSpec& spec)
      : parts([this](const std::string& name, const std::vector<int64_t>& shape) {
          ++reads[name];
          return at::randn(shape);
        }) {
    parts.path = "model.layers.1.";
    layer.emplace(spec, spec.layers[1], parts);
  }
  std::map<std::string, int> reads;
  Parts parts;
  std::optional<Layer> layer;
};

// A checkpoint's tensors of the second layer.
std::map<std::string, at::Tensor> stored(const JsonObject& config) {
  std::map<std::string, at::Tensor> out;
  for (const auto& [name, value] : tiny_weights(config)) {
    if (name.starts_with("model.layers.1.")) out[name] = value;
  }
  return out;
}

class LayerParts : public testing::TestWithParam<std::string> {};

TEST_P(LayerParts, AreTheCheckpointsEachOnceWithItsShape) {
  const JsonObject config = tiny_config(GetParam());
  const DrawnLayer drawn(tiny_spec(config));
  const auto want = stored(config);
  EXPECT_EQ(drawn.parts.weights.size(), want.size());
  for (const NamedWeight& weight : drawn.parts.weights) {
    ASSERT_TRUE(want.contains(weight.name)) << weight.name;
    EXPECT_EQ(weight.value->sizes(), want.at(weight.name).sizes()) << weight.name;
    EXPECT_EQ(drawn.reads.at(weight.name), 1) << weight.name;
    EXPECT_EQ(weight.decay, weight.value->dim() >= 2) << weight.name;
  }
}

TEST_P(LayerParts, HaveTheBuffersThatAreEnteredForTheirWeights) {
  const DrawnLayer drawn(tiny_spec(tiny_config(GetParam())));
  std::map<std::string, nn::WeightGrad> buffers;
  for (const NamedWeight& weight : drawn.parts.weights) {
    EXPECT_EQ(*weight.grad, nullptr) << weight.name << " begins frozen";
    *weight.grad = &buffers[weight.name];
  }
  for (const NamedLinear& linear : drawn.parts.linears) {
    EXPECT_EQ(linear.linear->weight_grad, &buffers.at(linear.path + ".weight"));
    const bool bias = linear.linear->bias.defined();
    EXPECT_EQ(linear.linear->bias_grad, bias ? &buffers.at(linear.path + ".bias") : nullptr);
  }
  const Layer& layer = *drawn.layer;
  EXPECT_EQ(layer.mixer_norm.grad, &buffers.at("model.layers.1.input_layernorm.weight"));
  EXPECT_EQ(layer.mlp_norm.grad, &buffers.at("model.layers.1.post_attention_layernorm.weight"));
}

INSTANTIATE_TEST_SUITE_P(All, LayerParts, testing::Values("llama", "qwen2", "qwen3", "delta"));

// Says that it keeps 1000 bytes a token.
struct Keeping : nn::Delta {
  std::vector<at::Tensor> forward(const at::Tensor&, const nn::Rows&, at::Tensor&) override {
    return {};
  }
  int64_t saved_bytes(const nn::Rows& rows) const override { return 1000 * rows.num_tokens(); }
  void backward(const at::Tensor&, const at::Tensor&, const std::vector<at::Tensor>&,
                const nn::Rows&, at::Tensor&) override {}
};

TEST(Layer, EveryLinearsDeltaCountsInItsBlockAndTheInputWhereItIsRead) {
  const DrawnLayer drawn(read_spec(tiny_config()));
  const Layer& layer = *drawn.layer;
  const nn::Rows rows = nn::pack(std::vector<int64_t>{3, 2});
  Keeping delta;
  for (const NamedLinear& linear : drawn.parts.linears) {
    const int64_t mixer = layer.mixer->saved_bytes(rows), mlp = layer.mlp->saved_bytes(rows);
    linear.linear->delta = &delta;
    const bool in_mlp = linear.path.find(".mlp.") != std::string::npos;
    const bool reads_x = !linear.path.ends_with("o_proj") && !linear.path.ends_with("down_proj");
    const int64_t more = 5 * (1000 + (reads_x ? 48 * 4 : 0));
    EXPECT_EQ(layer.mixer->saved_bytes(rows) - mixer, in_mlp ? 0 : more) << linear.path;
    EXPECT_EQ(layer.mlp->saved_bytes(rows) - mlp, in_mlp ? more : 0) << linear.path;
    linear.linear->delta = nullptr;
  }
}

TEST(Layer, SamplingKeepsAKeyAndAValueOfEveryTokenForEachKeyHead) {
  const StateSpec state = DrawnLayer(read_spec(tiny_config())).layer->mixer->state();
  EXPECT_EQ(state.num_heads, 2);
  EXPECT_EQ(state.head_dim, 12);
  EXPECT_EQ(state.token_size(), 2 * 2 * 12);
}

JsonObject some_config(const std::string& family) {
  JsonObject config = tiny_family(family);
  if (error_of([&] { read_spec(config); }) != "no error") config = tiny_config(family);
  if (family != "chatglm") return config;
  for (const auto& [key, same] :
       {std::pair{"padded_vocab_size", "vocab_size"}, std::pair{"num_layers", "num_hidden_layers"},
        std::pair{"ffn_hidden_size", "intermediate_size"}, std::pair{"kv_channels", "head_dim"},
        std::pair{"seq_length", "max_position_embeddings"}})
    config[key] = Json(config.at(same));
  return config;
}

// "no error", or that of any layer, made of weights without numbers on another device.
std::string refusal_on_a_device(const DecoderSpec& spec) {
  Parts parts(
      [](const std::string&, const std::vector<int64_t>& shape) {
        return at::empty(shape, at::device(at::kMeta));
      },
      spec.layout);
  return error_of([&] {
    for (const LayerSpec& layer : spec.layers) Layer(spec, layer, parts);
  });
}

// tests/parity/families/recipes.py reads this list, and README.md's table is written by it.
constexpr std::string_view kOnTheCpuAlone[] = {
    "qwen3_moe",  "qwen2_moe",   "mixtral",     "deepseek", "glm4_moe", "qwen3_5", "qwen3_5_moe",
    "qwen3_next", "deepseek_v2", "deepseek_v3", "gpt_oss",  "gemma2",   "gemma3"};

TEST(Layer, TheFamiliesOfTheCpuAloneAreRefusedOnAnotherDeviceByNameAndOthersAreNot) {
  for (const Family& family : families()) {
    const std::string text = refusal_on_a_device(read_spec(some_config(family.name)));
    if (std::ranges::find(kOnTheCpuAlone, family.name) != std::end(kOnTheCpuAlone)) {
      EXPECT_TRUE(text.starts_with("model: device is meta, but ")) << family.name << ": " << text;
      EXPECT_NE(text.find("(" + family.name + ") run"), text.npos) << text;
      EXPECT_TRUE(text.ends_with(" on the CPU only in this version; set the device to cpu"))
          << text;
    } else {
      EXPECT_EQ(text, "no error") << family.name;
    }
  }
}

}  // namespace
}  // namespace twinkle::model
