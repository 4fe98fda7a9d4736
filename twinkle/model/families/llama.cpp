// Llama 2 and 3, SmolLM2, and the R1 distills of Llama. (Touvron et al. 2023; Dubey et al. 2024)
#include "twinkle/model/family.h"

namespace twinkle::model {

Family llama() {
  return {.name = "llama", .architectures = {"LlamaForCausalLM"}, .spec = [](const Json& config) {
            DecoderSpec spec = llama_like(config);
            for (LayerSpec& layer : spec.layers) {
              AttentionSpec& a = layer.attention();
              a.qkv_bias = a.o_bias = get_or(config, "attention_bias", false);
              layer.gated_mlp().bias = get_or(config, "mlp_bias", false);
            }
            return spec;
          }};
}

}  // namespace twinkle::model
