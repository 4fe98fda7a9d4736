// DeepSeek-V3 and R1 (DeepSeek-AI 2024, 2025): latent attention, experts by sigmoids with a
// correction of the choice, of the best groups, and a shared one. Its FP8 weights: io/fp8/fp8.h.
// Layers behind the last one predict further tokens; they are not read.
#include "twinkle/model/routed_families/latent.h"
#include "twinkle/model/routed_families/routed.h"

namespace twinkle::model {

Family deepseek_v3() {
  return {.name = "deepseek_v3",
          .architectures = {"DeepseekV3ForCausalLM"},
          .keys = {"kv_lora_rank", "n_routed_experts", "num_local_experts", "rope_interleave",
                   "scoring_func", "topk_method"},
          .spec =
              [](const Json& config) {
                DecoderSpec spec = latent_like(config);
                const ExpertsSpec experts =
                    corrected_experts(config, {.groups = 8, .top_groups = 4, .scale = 2.5});
                route_layers(spec, experts, deepseek_routed(config, 3));
                spec.layout.stacks = expert_stacks("mlp", "gate_proj", "up_proj", "down_proj");
                spec.layout.behind = layers_behind(spec.num_layers());
                return spec;
              },
          .absent = {{"q_lora_rank", 1536}}};
}

}  // namespace twinkle::model
