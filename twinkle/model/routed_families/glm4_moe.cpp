// GLM-4.5, 4.6 and 4.7 (GLM-4.5 team 2025): rope on the first half of a head, experts by sigmoids
// with a correction of the choice, and a shared expert. Layers behind the last one predict further
// tokens; they are not read.
#include "twinkle/model/routed_families/routed.h"

namespace twinkle::model {

Family glm4_moe() {
  return {.name = "glm4_moe",
          .architectures = {"Glm4MoeForCausalLM"},
          .keys = {"n_routed_experts", "num_local_experts", "use_qk_norm", "partial_rotary_factor",
                   "scoring_func", "topk_method"},
          .spec =
              [](const Json& config) {
                DecoderSpec spec = llama_like(config);
                for (LayerSpec& layer : spec.layers) {
                  AttentionSpec& a = layer.attention();
                  a.qkv_bias = get_or(config, "attention_bias", false);
                  a.qk_norm = get_or(config, "use_qk_norm", false);
                }
                rotate_share(spec, read_rotary_share(config, 0.5));
                require_value<int64_t>(config, "moe_layer_freq", 1);  // transformers reads none
                route_layers(spec, corrected_experts(config), deepseek_routed(config, 1));
                spec.layout.stacks = expert_stacks("mlp", "gate_proj", "up_proj", "down_proj");
                spec.layout.behind = layers_behind(spec.num_layers());
                return spec;
              },
          .classifier = false,
          .absent = {{"num_key_value_heads", 8}, {"rms_norm_eps", 1e-5}}};
}

}  // namespace twinkle::model
