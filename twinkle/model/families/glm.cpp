#include "twinkle/model/families/glm.h"

namespace twinkle::model {

DecoderSpec glm_like(const Json& config) {
  DecoderSpec spec = llama_like(config);
  if (!find(config, "rms_norm_eps")) spec.norm.eps = 1.5625e-07;
  for (LayerSpec& layer : spec.layers) {
    layer.attention().qkv_bias = read_flag(config, "attention_bias", true);
    layer.gated_mlp().fused = true;
  }
  spec.rope.interleaved = true;
  // The hub's glm-4-9b-chat-hf does not say its half.
  rotate_share(spec, read_rotary_share(config, 0.5));
  return spec;
}

Family glm() {  // and GLM-Edge, which rotates whole heads and has no biases
  return {.name = "glm",
          .architectures = {"GlmForCausalLM"},
          .keys = {"partial_rotary_factor"},
          .spec = glm_like,
          .absent = {{"num_key_value_heads", 2}, {"head_dim", 128}}};
}

}  // namespace twinkle::model
