// The first DeepSeek with experts (Dai et al. 2024, DeepSeekMoE): llama's attention, small experts
// by the softmax of all, and shared ones that every token passes.
#include "twinkle/model/routed_families/latent.h"
#include "twinkle/model/routed_families/routed.h"

namespace twinkle::model {

Family deepseek() {
  return {.name = "deepseek",
          .architectures = {"DeepseekForCausalLM"},
          .keys = {"n_routed_experts", "scoring_func", "topk_method", "kv_lora_rank",
                   "rope_interleave"},
          .spec =
              [](const Json& config) {
                if (find(config, "kv_lora_rank")) return deepseek_v2_spec(config);
                require_value(config, "rope_interleave", false);
                DecoderSpec spec = llama_like(config);
                for (LayerSpec& layer : spec.layers) {
                  AttentionSpec& a = layer.attention();
                  a.qkv_bias = a.o_bias = get_or(config, "attention_bias", false);
                }
                require_value<std::string>(config, "scoring_func", "softmax");
                require_value<std::string>(config, "topk_method", "greedy");
                ExpertsSpec experts = read_experts(config);
                // Its code leaves one expert's weight as it is.
                experts.route.normalise =
                    experts.route.top_k > 1 && get_or(config, "norm_topk_prob", false);
                experts.route.norm_eps = 1e-20;
                experts.aux_loss = nn::AuxLoss::kEachLayer;
                share_experts(config, 0, experts);
                route_layers(spec, experts, deepseek_routed(config, 0));
                spec.layout.has_stacked_experts = false;  // its class is on the hub
                spec.layout.stacks = expert_stacks("mlp", "gate_proj", "up_proj", "down_proj");
                return spec;
              },
          .classifier = false,
          .absent = {{"q_lora_rank", 1536}}};  // deepseek_v2's own default
}

}  // namespace twinkle::model
