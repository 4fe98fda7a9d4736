// Qwen3 with experts (Yang et al. 2025): qwen3's attention, and experts by the softmax of all.
#include "twinkle/model/routed_families/routed.h"

namespace twinkle::model {

Family qwen3_moe() {
  return {.name = "qwen3_moe",
          .architectures = {"Qwen3MoeForCausalLM"},
          .keys = {"num_experts", "num_local_experts", "use_sliding_window", "use_qk_norm"},
          .spec =
              [](const Json& config) {
                require_value(config, "use_qk_norm", true);  // in Qwen3-Coder's config.json
                DecoderSpec spec = llama_like(config);
                // The window of every layer, whatever max_window_layers and layer_types say.
                const bool windowed = get_or(config, "use_sliding_window", false);
                const int64_t window = windowed && find(config, "sliding_window")
                                           ? read_size(config, "sliding_window")
                                           : 0;
                for (LayerSpec& layer : spec.layers) {
                  AttentionSpec& a = layer.attention();
                  a.window = window;
                  a.qk_norm = true;
                  a.qkv_bias = a.o_bias = get_or(config, "attention_bias", false);
                }
                ExpertsSpec experts = read_experts(config);
                experts.route.normalise = get_or(config, "norm_topk_prob", false);
                route_layers(spec, experts, qwen_routed(config));
                spec.layout.stacks = expert_stacks("mlp", "gate_proj", "up_proj", "down_proj");
                return spec;
              },
          .absent = {{"num_key_value_heads", 4}, {"sliding_window", 4096}}};
}

}  // namespace twinkle::model
