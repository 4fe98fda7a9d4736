// Qwen2 and Qwen2.5, and the R1 distills of Qwen (Yang et al. 2024): llama with biases on q, k and
// v.
#include "twinkle/model/family.h"

namespace twinkle::model {

Family qwen2() {
  return {.name = "qwen2",
          .architectures = {"Qwen2ForCausalLM"},
          .keys = {"use_sliding_window"},
          .spec =
              [](const Json& config) {
                DecoderSpec spec = llama_like(config);
                for (LayerSpec& layer : spec.layers) layer.attention().qkv_bias = true;
                return spec;
              },
          .absent = {{"num_key_value_heads", 32}, {"sliding_window", 4096}}};
}

}  // namespace twinkle::model
