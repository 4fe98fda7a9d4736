// glm-4-9b and chatglm3 as their own code has them (zai-org's modeling_chatglm.py): glm's
// arithmetic with other fields, other names, and one linear for q, k and v.
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "twinkle/model/families/glm.h"

namespace twinkle::model {
namespace {

// The fields by which glm says the same.
JsonObject as_glm(const Json& config) {
  const auto size = [&](const char* key) { return read_size(config, key); };
  const double ratio = get_or(config, "rope_ratio", 1.0);
  require(ratio > 1e-4 && std::isfinite(ratio), Code::kInvalid,
          "model: config field 'rope_ratio' is ", ratio,
          ", it must be finite and above 0.0001: rope's theta is 10000 times that");
  require(ratio == 1.0 || get_or(config, "original_rope", false), Code::kInvalid,
          "model: config field 'rope_ratio' is ", ratio,
          ", and 'original_rope' is not true; older checkpoints divide positions by it, which is "
          "not supported: convert it to model_type glm");
  const bool grouped = get_or(config, "multi_query_attention", false);
  const double dropout = get_or(config, "hidden_dropout", 0.0);
  require(dropout == 0.0, Code::kInvalid, "model: hidden_dropout is ", dropout,
          "; only 0 is supported: set it to 0 in config.json");
  JsonObject out{
      {"vocab_size", size("padded_vocab_size")},
      {"hidden_size", size("hidden_size")},
      {"num_hidden_layers", size("num_layers")},
      {"intermediate_size", size("ffn_hidden_size")},
      {"max_position_embeddings", size("seq_length")},
      {"num_attention_heads", size("num_attention_heads")},
      {"num_key_value_heads", size(grouped ? "multi_query_group_num" : "num_attention_heads")},
      {"head_dim", size("kv_channels")},
      {"rms_norm_eps", get_or(config, "layernorm_epsilon", 1e-5)},
      {"rope_theta", 10000.0 * ratio},
      {"attention_bias", get_or(config, "add_qkv_bias", false)},
      {"attention_dropout", get_or(config, "attention_dropout", 0.0)},
      {"tie_word_embeddings", get_or(config, "tie_word_embeddings", false)}};
  return out;
}

// The spec by as_glm(); its errors name the fields that this family has.
DecoderSpec spec_of(const JsonObject& glm) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"num_key_value_heads", "multi_query_group_num"},
      {"head_dim", "kv_channels"},
      {"rms_norm_eps", "layernorm_epsilon"}};
  try {
    return glm_like(glm);
  } catch (const Error& e) {
    std::string text = e.what();
    for (const auto& [theirs, own] : kNames)
      if (const size_t at = text.find(theirs); at != std::string::npos)
        text.replace(at, theirs.size(), own);
    fail(e.code, text);
  }
}

}  // namespace

Family chatglm() {
  return {.name = "chatglm",
          .architectures = {"ChatGLMModel", "ChatGLMForConditionalGeneration"},
          .spec = [](const Json& config) {
            DecoderSpec spec = spec_of(as_glm(config));
            // Where every head has keys of its own its code splits the linear's rows by head.
            const bool stacked = get_or(config, "multi_query_attention", false);
            for (LayerSpec& layer : spec.layers) {
              layer.attention().projections =
                  stacked ? Projections::kStacked : Projections::kGrouped;
            }
            spec.layout.model = {{"model.embed_tokens", "transformer.embedding.word_embeddings"},
                                 {"model.layers", "transformer.encoder.layers"},
                                 {"model.norm", "transformer.encoder.final_layernorm"},
                                 {"lm_head", "transformer.output_layer"}};
            spec.layout.layer = {{"self_attn.qkv_proj", "self_attention.query_key_value"},
                                 {"self_attn.o_proj", "self_attention.dense"},
                                 {"mlp.gate_up_proj", "mlp.dense_h_to_4h"},
                                 {"mlp.down_proj", "mlp.dense_4h_to_h"}};
            return spec;
          }};
}

}  // namespace twinkle::model
