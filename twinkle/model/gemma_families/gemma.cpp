#include "twinkle/model/gemma_families/gemma.h"

#include <cmath>
#include <vector>

namespace twinkle::model {
namespace {

// True for each layer with a window.
std::vector<bool> sliding_layers(const Json& config, size_t count, int64_t pattern) {
  std::vector<bool> out(count);
  const Json* types = find(config, "layer_types");
  if (!types) {
    for (size_t i = 0; i < count; ++i) out[i] = (i + 1) % static_cast<size_t>(pattern) != 0;
    return out;
  }
  require(types->is_array() && types->get_array().size() == count, Code::kInvalid,
          "model: config field 'layer_types' must list ", count, " layers");
  for (size_t i = 0; i < count; ++i) {
    const Json& type = types->get_array()[i];
    require(type == "sliding_attention" || type == "full_attention", Code::kInvalid,
            "model: config field 'layer_types' holds ", boost::json::serialize(type),
            "; known: \"full_attention\", \"sliding_attention\"");
    out[i] = type == "sliding_attention";
  }
  return out;
}

double read_scale(const Json& config, std::string_view key) {
  const auto value = get<double>(config, key);
  require(value >= 1e-3 && value <= 1e6, Code::kInvalid, "model: config field '", key, "' is ",
          value, ", it must be at least 0.001 and at most 1000000");
  return value;
}

}  // namespace

double read_softcap(const Json& config, std::string_view key) {
  return find(config, key) ? read_scale(config, key) : 0;
}

DecoderSpec gemma_like(const Json& config, int64_t pattern) {
  require_value<std::string>(config, "hidden_activation", "gelu_pytorch_tanh");
  Json llama = config;
  llama.as_object().erase("hidden_act");  // in the hub's files; transformers does not read it
  llama.as_object().erase("layer_types");
  DecoderSpec spec = llama_like(llama);
  spec.norm.zero_centred = spec.sandwich = true;
  spec.embed_scale = std::sqrt(static_cast<double>(spec.hidden_size));
  const double scale = 1 / std::sqrt(read_scale(config, "query_pre_attn_scalar"));
  const std::vector<bool> slides = sliding_layers(config, spec.layers.size(), pattern);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    AttentionSpec& a = spec.layers[i].attention();
    a.scale = scale;
    a.qkv_bias = a.o_bias = get_or(config, "attention_bias", false);
    if (slides[i]) a.window = read_size(config, "sliding_window");
    spec.layers[i].gated_mlp().activation = nn::Activation::kGeluTanh;
  }
  spec.layout.layer = {{"post_self_attn_layernorm", "post_attention_layernorm"},
                       {"post_attention_layernorm", "pre_feedforward_layernorm"},
                       {"post_mlp_layernorm", "post_feedforward_layernorm"}};
  return spec;
}

}  // namespace twinkle::model
