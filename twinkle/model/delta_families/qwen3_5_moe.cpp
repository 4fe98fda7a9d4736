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
                DecoderSpec spec = delta_like(with_dense_width(text));
                nest(spec, config);
                // Whatever norm_topk_prob says.
                route_as_qwen(spec, text, true, [](int64_t) { return true; });
                return spec;
              },
          .also = {"qwen3_5_moe_text"},
          .nested = true,
          .absent = {{"num_key_value_heads", 2}, {"head_dim", 256}}};
}

}  // namespace twinkle::model
