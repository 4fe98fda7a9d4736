#include "twinkle/model/delta_families/gated_delta.h"

#include <vector>

#include "twinkle/base/error.h"

namespace twinkle::model {
namespace {

// True for each layer with attention.
std::vector<bool> attention_layers(const Json& config, size_t count) {
  std::vector<bool> out(count);
  const Json* types = find(config, "layer_types");
  if (!types) {
    const auto interval = static_cast<size_t>(
        find(config, "full_attention_interval") ? read_size(config, "full_attention_interval") : 4);
    for (size_t i = 0; i < count; ++i) out[i] = (i + 1) % interval == 0;
    return out;
  }
  require(types->is_array() && types->get_array().size() == count, Code::kInvalid,
          "model: config field 'layer_types' must list ", count, " layers");
  for (size_t i = 0; i < count; ++i) {
    const Json& type = types->get_array()[i];
    require(type == "full_attention" || type == "linear_attention", Code::kInvalid,
            "model: config field 'layer_types' holds ", boost::json::serialize(type),
            "; known: \"full_attention\", \"linear_attention\"");
    out[i] = type == "full_attention";
  }
  return out;
}

DeltaSpec read_delta(const Json& config) {
  const DeltaSpec delta{.num_key_heads = read_size(config, "linear_num_key_heads"),
                        .num_value_heads = read_size(config, "linear_num_value_heads"),
                        .key_dim = read_size(config, "linear_key_head_dim"),
                        .value_dim = read_size(config, "linear_value_head_dim")};
  require(delta.num_value_heads % delta.num_key_heads == 0, Code::kInvalid,
          "model: linear_num_value_heads is ", delta.num_value_heads,
          ", it must be a multiple of linear_num_key_heads, ", delta.num_key_heads);
  return delta;
}

// Positions of pictures are three each; a text's are one, and mrope is then plain rope.
Json without_mrope(const Json& config) {
  Json out = config;
  for (const char* place : {"rope_parameters", "rope_scaling"}) {
    Json* rope = out.as_object().if_contains(place);
    if (!rope || !rope->is_object()) continue;
    const bool empty = rope->as_object().empty();
    for (const char* key : {"mrope_section", "mrope_interleaved"}) rope->as_object().erase(key);
    // An empty one would give way to the other place.
    if (!empty && rope->as_object().empty()) rope->as_object()["rope_type"] = "default";
  }
  return out;
}

// Checks the activation of the rule's output. In transformers it is hidden_act, by which
// llama_like() reads silu.
void check_output_gate(const Json& config) {
  const auto type = get_or<std::string>(config, "output_gate_type", "silu");
  require(type == "silu" || type == "swish", Code::kInvalid,
          "model: config field 'output_gate_type' is \"", type,
          "\"; known: \"silu\", \"swish\", which are one");
}

}  // namespace

DecoderSpec delta_like(const Json& config) {
  require_value(config, "attn_output_gate", true);
  require_value<int64_t>(config, "linear_conv_kernel_dim", 4);
  require_value<std::string>(config, "mamba_ssm_dtype", "float32");
  check_output_gate(config);
  DecoderSpec spec = llama_like(without_mrope(config));
  spec.norm.zero_centred = true;
  rotate_share(spec, read_rotary_share(config, 0.25));
  const DeltaSpec delta = read_delta(config);
  const std::vector<bool> attends = attention_layers(config, spec.layers.size());
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (!attends[i]) {
      spec.layers[i].mixer = delta;
      continue;
    }
    AttentionSpec& a = spec.layers[i].attention();
    a.qk_norm = a.output_gate = true;
    a.qkv_bias = a.o_bias = get_or(config, "attention_bias", false);
  }
  spec.layout.skipped = {"mtp."};
  spec.layout.in_float32 = {"linear_attn.A_log", "linear_attn.dt_bias"};
  return spec;
}

void nest(DecoderSpec& spec, const Json& whole) {
  spec.tied_head = read_flag(whole, "tie_word_embeddings", spec.tied_head);
  spec.layout.skipped.emplace_back("model.visual.");
  if (find(whole, "text_config")) spec.layout.model = {{"model", "model.language_model"}};
}

}  // namespace twinkle::model
