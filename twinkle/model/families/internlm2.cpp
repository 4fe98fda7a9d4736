// InternLM2 and 2.5 (Cai et al. 2024): llama with other names, and one linear whose rows are, of
// each key head, its queries, its key and its value.
#include "twinkle/model/family.h"

namespace twinkle::model {

Family internlm2() {
  return {.name = "internlm2",
          .architectures = {"InternLM2ForCausalLM"},
          .spec =
              [](const Json& config) {
                DecoderSpec spec = llama_like(config);
                for (LayerSpec& layer : spec.layers) {
                  AttentionSpec& a = layer.attention();
                  a.projections = Projections::kGrouped;
                  a.qkv_bias = a.o_bias = read_flag(config, "bias", true);
                }
                spec.layout.model = {{"model.embed_tokens", "model.tok_embeddings"},
                                     {"lm_head", "output"}};
                spec.layout.layer = {
                    {"self_attn.qkv_proj", "attention.wqkv"}, {"self_attn.o_proj", "attention.wo"},
                    {"mlp.gate_proj", "feed_forward.w1"},     {"mlp.up_proj", "feed_forward.w3"},
                    {"mlp.down_proj", "feed_forward.w2"},     {"input_layernorm", "attention_norm"},
                    {"post_attention_layernorm", "ffn_norm"}};
                return spec;
              },
          .classifier = false};
}

}  // namespace twinkle::model
