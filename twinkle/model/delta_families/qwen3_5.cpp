// Qwen3.5, dense: most layers mix by the gated delta rule, the others by attention with a gate on
// its output; norms are zero-centred, but for the one behind the rule. The checkpoints' pictures
// and further predictions are not read.
#include "twinkle/model/delta_families/gated_delta.h"

namespace twinkle::model {

Family qwen3_5() {
  return {.name = "qwen3_5",
          .architectures = {"Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"},
          .keys = {"attn_output_gate", "partial_rotary_factor"},
          .spec =
              [](const Json& config) {
                DecoderSpec spec = delta_like(text_of(config));
                nest(spec, config);
                return spec;
              },
          .also = {"qwen3_5_text"},
          .nested = true,
          .absent = {{"num_key_value_heads", 4}, {"head_dim", 256}}};
}

}  // namespace twinkle::model
