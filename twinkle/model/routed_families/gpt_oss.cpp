// gpt-oss (OpenAI 2025): attention with biases and a sink in every head, a window in every other
// layer, YaRN; clamped experts with biases in every layer, whose stacks are turned. Its mxfp4
// weights: io/mxfp4/mxfp4.h.
#include <algorithm>

#include "twinkle/base/error.h"
#include "twinkle/model/routed_families/routed.h"

namespace twinkle::model {
namespace {

// The config with what its class in transformers takes for fields that are not there: llama's
// reader of layer_types asks for use_sliding_window.
Json with_layers_and_rope(const Json& config) {
  Json out = config;
  JsonObject& fields = out.as_object();
  fields["use_sliding_window"] = true;
  if (!find(config, "layer_types")) {
    JsonArray types;
    const int64_t most = 65536;  // more are refused
    for (int64_t i = 0; i < std::min(read_size(config, "num_hidden_layers"), most); ++i)
      types.emplace_back(i % 2 == 0 ? "sliding_attention" : "full_attention");
    fields["layer_types"] = types;
  }
  if (!find_rope(config)) {
    fields["rope_parameters"] = JsonObject{
        {"rope_type", "yarn"}, {"factor", 32.0},    {"beta_fast", 32.0},
        {"beta_slow", 1.0},    {"truncate", false}, {"original_max_position_embeddings", 4096}};
  }
  if (!find(config, "rope_theta") && !find(*find_rope(out), "rope_theta"))
    fields["rope_theta"] = 150000.0;
  return out;
}

kernels::ClampedSwiglu read_clamp(const Json& config) {
  kernels::ClampedSwiglu out;
  out.limit = get_or(config, "swiglu_limit", out.limit);
  out.alpha = get_or(config, "swiglu_alpha", out.alpha);
  for (const auto& [key, value] :
       {std::pair{"swiglu_limit", out.limit}, std::pair{"swiglu_alpha", out.alpha}}) {
    require(value >= 1e-3 && value <= 1e6, Code::kInvalid, "model: config field '", key, "' is ",
            value, ", it must be at least 0.001 and at most 1000000");
  }
  return out;
}

}  // namespace

Family gpt_oss() {
  return {.name = "gpt_oss",
          .architectures = {"GptOssForCausalLM"},
          .keys = {"num_experts", "num_local_experts", "swiglu_limit", "swiglu_alpha"},
          .spec =
              [](const Json& config) {
                DecoderSpec spec = llama_like(with_layers_and_rope(config));
                for (LayerSpec& layer : spec.layers) {
                  AttentionSpec& a = layer.attention();
                  a.qkv_bias = a.o_bias = read_flag(config, "attention_bias", true);
                  a.sinks = true;
                }
                ExpertsSpec experts = read_experts(config);
                experts.intermediate_size = read_size(config, "intermediate_size");
                // The softmax of the chosen logits is that of all, divided by the chosen ones' sum.
                experts.route.normalise = true;
                experts.clamped = read_clamp(config);
                route_layers(spec, experts, [](int64_t) { return true; });
                spec.layout.layer = {{"mlp.gate", "mlp.router"}};
                // As in transformers, whatever the model's type is.
                spec.layout.in_float32 = {"input_layernorm.weight",
                                          "post_attention_layernorm.weight", "norm.weight"};
                return spec;
              },
          .absent = {{"num_key_value_heads", 8},
                     {"head_dim", 64},
                     {"rms_norm_eps", 1e-5},
                     {"sliding_window", 128}}};
}

}  // namespace twinkle::model
