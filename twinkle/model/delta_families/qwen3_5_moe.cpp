// Qwen3.5 and 3.6 with experts: qwen3_5's mixers, and in every layer experts by the softmax of all,
// whose weights sum to 1, and a shared one behind a sigmoid gate.
#include "twinkle/model/delta_families/gated_delta.h"
#include "twinkle/model/routed_families/routed.h"

namespace twinkle::model {
namespace {

// llama_like() reads the width of dense layers, of which there are none.
Json with_dense_width(const Json& text) {
  Json out = text;
  out.as_object().emplace("intermediate_size", get<int64_t>(text, "moe_intermediate_size"));
  return out;
}

}  // namespace

Family qwen3_5_moe() {
  return {.name = "qwen3_5_moe",
          .architectures = {"Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM"},
          .keys = {"attn_output_gate", "partial_rotary_factor", "num_experts", "num_local_experts"},
          .spec =
              [](const Json& config) {
                const Json& text = text_of(config);
                DecoderSpec spec = delta_like(with_dense_width(text), "qwen3_5_moe");
                nest(spec, config);
                ExpertsSpec experts = read_experts(text);
                experts.route.normalise = true;  // whatever norm_topk_prob says
                experts.shared_size = read_size(text, "shared_expert_intermediate_size");
                experts.shared_gate = true;
                route_layers(spec, experts, [](int64_t) { return true; });
                spec.layout.stacks = expert_stacks("mlp", "gate_proj", "up_proj", "down_proj");
                return spec;
              },
          .also = {"qwen3_5_moe_text"},
          .nested = true};
}

}  // namespace twinkle::model
