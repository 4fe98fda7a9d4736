// Gemma 2 (Gemma team 2024): every other layer has a window, and scores and logits are capped.
#include "twinkle/model/gemma_families/gemma.h"

namespace twinkle::model {

Family gemma2() {
  return {.name = "gemma2",
          .architectures = {"Gemma2ForCausalLM"},
          .keys = {"query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"},
          .spec =
              [](const Json& config) {
                DecoderSpec spec = gemma_like(config, 2);
                for (LayerSpec& layer : spec.layers)
                  layer.attention().softcap = read_softcap(config, "attn_logit_softcapping");
                spec.softcap = read_softcap(config, "final_logit_softcapping");
                return spec;
              },
          .absent = {{"num_key_value_heads", 4},
                     {"head_dim", 256},
                     {"query_pre_attn_scalar", 256},
                     {"attn_logit_softcapping", 50.0},
                     {"final_logit_softcapping", 30.0},
                     {"sliding_window", 4096},
                     {"tie_word_embeddings", true}}};
}

}  // namespace twinkle::model
