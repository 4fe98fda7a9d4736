// InternLM3 (Shanghai AI Laboratory 2025): llama with other names of its biases' fields.
#include "twinkle/model/family.h"

namespace twinkle::model {

Family internlm3() {
  return {.name = "internlm3",
          // The second is what transformers writes.
          .architectures = {"InternLM3ForCausalLM", "LlamaForCausalLM"},
          .spec =
              [](const Json& config) {
                // transformers' class is llama's, and so are the names that it may write.
                const bool mlp = read_flag(config, "bias", read_flag(config, "mlp_bias", false));
                const bool qkv =
                    read_flag(config, "qkv_bias", read_flag(config, "attention_bias", false));
                require(mlp == qkv, Code::kInvalid, "model: config field 'qkv_bias' is ", qkv,
                        " and 'bias' is ", mlp, "; only models where they are equal are supported");
                DecoderSpec spec = llama_like(config);
                for (LayerSpec& layer : spec.layers) {
                  AttentionSpec& a = layer.attention();
                  a.qkv_bias = a.o_bias = layer.gated_mlp().bias = mlp;
                }
                return spec;
              },
          .classifier = false,
          .absent = {{"num_key_value_heads", 2}, {"head_dim", 128}, {"rms_norm_eps", 1e-5}}};
}

}  // namespace twinkle::model
