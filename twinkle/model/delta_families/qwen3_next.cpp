// Qwen3-Next: qwen3_5's mixers, with the rule's projections stored by key head, and experts by the
// softmax of all with a shared one behind a sigmoid gate.
#include "twinkle/model/delta_families/gated_delta.h"
#include "twinkle/model/routed_families/routed.h"

namespace twinkle::model {

Family qwen3_next() {
  return {.name = "qwen3_next",
          .architectures = {"Qwen3NextForCausalLM"},
          .keys = {"attn_output_gate", "partial_rotary_factor", "num_experts", "num_local_experts"},
          .spec =
              [](const Json& config) {
                DecoderSpec spec = delta_like(config);
                for (LayerSpec& layer : spec.layers) {
                  if (auto* delta = std::get_if<DeltaSpec>(&layer.mixer)) delta->by_key_head = true;
                }
                route_as_qwen(spec, config, read_flag(config, "norm_topk_prob", true),
                              qwen_routed(config));
                return spec;
              },
          .absent = {{"num_key_value_heads", 2}, {"head_dim", 256}}};
}

}  // namespace twinkle::model
