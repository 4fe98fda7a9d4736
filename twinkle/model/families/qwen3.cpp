// Qwen3, dense (Yang et al. 2025): llama with normed q and k heads.
#include "twinkle/model/family.h"

namespace twinkle::model {

Family qwen3() {
  return {.name = "qwen3", .architectures = {"Qwen3ForCausalLM"}, .spec = [](const Json& config) {
            DecoderSpec spec = llama_like(config);
            spec.attention.qk_norm = true;
            spec.attention.qkv_bias = spec.attention.o_bias =
                get_or(config, "attention_bias", false);
            return spec;
          }};
}

}  // namespace twinkle::model
