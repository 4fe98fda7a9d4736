// Qwen3, dense (Yang et al. 2025): llama with normed q and k heads.
#include "twinkle/model/family.h"

namespace twinkle::model {

Family qwen3() {
  return {.name = "qwen3",
          .architectures = {"Qwen3ForCausalLM"},
          .keys = {"use_sliding_window", "use_qk_norm"},
          .spec =
              [](const Json& config) {
                require_value(config, "use_qk_norm", true);
                DecoderSpec spec = llama_like(config);
                for (LayerSpec& layer : spec.layers) {
                  AttentionSpec& a = layer.attention();
                  a.qk_norm = true;
                  a.qkv_bias = a.o_bias = get_or(config, "attention_bias", false);
                }
                return spec;
              },
          .absent = {{"num_key_value_heads", 32}, {"sliding_window", 4096}, {"head_dim", 128}}};
}

}  // namespace twinkle::model
