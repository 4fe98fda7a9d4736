// Qwen3-Next: qwen3_5's mixers, with the rule's projections stored by key head, and experts by the
// softmax of all with a shared one behind a sigmoid gate.
#include "twinkle/model/delta_families/gated_delta.h"
#include "twinkle/model/routed_families/routed.h"

namespace twinkle::model {

Family qwen3_next() {
  return {.name = "qwen3_next",
          .architectures = {"Qwen3NextForCausalLM"},
          .keys = {"attn_output_gate", "partial_rotary_factor", "num_experts", "num_local_experts"},
          .spec = [](const Json& config) {
            DecoderSpec spec = delta_like(config, "qwen3_next");
            for (LayerSpec& layer : spec.layers) {
              if (auto* delta = std::get_if<DeltaSpec>(&layer.mixer)) delta->by_key_head = true;
            }
            ExpertsSpec experts = read_experts(config);
            experts.route.normalise = get_or(config, "norm_topk_prob", true);
            experts.shared_size = read_size(config, "shared_expert_intermediate_size");
            experts.shared_gate = true;
            route_layers(spec, experts, qwen_routed(config));
            spec.layout.stacks = expert_stacks("mlp", "gate_proj", "up_proj", "down_proj");
            return spec;
          }};
}

}  // namespace twinkle::model
