// Mixtral (Jiang et al. 2024): llama with experts in every layer; a window, where there is one,
// too.
#include "twinkle/model/routed_families/routed.h"

namespace twinkle::model {

Family mixtral() {
  return {.name = "mixtral",
          .architectures = {"MixtralForCausalLM"},
          .keys = {"num_experts", "num_local_experts", "use_sliding_window"},
          .spec =
              [](const Json& config) {
                DecoderSpec spec = llama_like(config);
                const bool windowed = find(config, "sliding_window") != nullptr;
                const int64_t window = windowed ? read_size(config, "sliding_window") : 0;
                for (LayerSpec& layer : spec.layers) layer.attention().window = window;
                const Json* rope = find_rope(config);
                if (!find(config, "rope_theta") && !(rope && find(*rope, "rope_theta")))
                  spec.rope.theta = 1e6;
                ExpertsSpec experts = read_experts(config);
                experts.route.normalise = true;
                route_layers(spec, experts, [](int64_t) { return true; });
                spec.layout.layer = {{"mlp", "block_sparse_moe"}};
                spec.layout.stacks = expert_stacks("block_sparse_moe", "w1", "w3", "w2");
                return spec;
              },
          .absent = {{"num_key_value_heads", 8}, {"rms_norm_eps", 1e-5}}};
}

}  // namespace twinkle::model
