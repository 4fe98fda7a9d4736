// Gemma 3 (Gemma team 2025): most layers have a window and a rope of their own, queries and keys
// are normed. Of a model with pictures the text model is read. Its class in transformers has a
// field of scores' softcap and does not read it.
#include "twinkle/model/gemma_families/gemma.h"

namespace twinkle::model {
namespace {

constexpr std::string_view kFull = "full_attention", kSliding = "sliding_attention";

// The rope of the layers of this type: `rope_parameters` (transformers 5), by type, or the hub's
// fields.
JsonObject rope_of_type(const Json& config, std::string_view type) {
  JsonObject rope;
  if (const Json* all = find(config, "rope_parameters")) {
    require(all->is_object(), Code::kInvalid, "model: config field 'rope_parameters' is ",
            boost::json::serialize(*all), ", it must be an object");
    for (const auto& [name, value] : all->get_object()) {
      const std::string_view key(name.data(), name.size());
      require(key == kFull || key == kSliding, Code::kInvalid,
              "model: config field 'rope_parameters' has the field '", key,
              "'; known: \"full_attention\", \"sliding_attention\"");
    }
    if (const Json* own = find(*all, type)) {
      require(own->is_object(), Code::kInvalid, "model: the config's rope of ", type, " is ",
              boost::json::serialize(*own), ", it must be an object");
      rope = own->get_object();
    }
  }
  const bool full = type == kFull;
  const Json* scaling = full ? find(config, "rope_scaling") : nullptr;
  require(!scaling || scaling->is_object(), Code::kInvalid,
          "model: config field 'rope_scaling' must be an object");
  if (scaling) {
    for (const auto& [key, value] : scaling->get_object()) rope[key] = value;
  }
  if (!find(Json(rope), "rope_theta")) {
    rope["rope_theta"] = full ? read_theta(config, "rope_theta", 1e6)
                              : read_theta(config, "rope_local_base_freq", 1e4);
  }
  require_value(Json(rope), "partial_rotary_factor", 1.0);
  return rope;
}

Json with_rope(const Json& config, std::string_view type) {
  Json out = config;
  out.as_object().erase("rope_scaling");
  out.as_object()["rope_parameters"] = rope_of_type(config, type);
  return out;
}

// Its errors say which of the two it is.
nn::RopeSpec read_rope_of(const Json& config, std::string_view type) {
  const Json own = with_rope(config, type);
  try {
    return read_rope(own);
  } catch (const Error& e) {
    fail(e.code, e.what(), " (the rope of ", type, ")");
  }
}

// The names of transformers 5, which the hub's files do not have yet.
void nest_gemma(DecoderSpec& spec, const Json& whole) {
  if (!find(whole, "text_config")) return;
  spec.tied_head = read_flag(whole, "tie_word_embeddings", true);  // transformers reads the outer
  spec.layout.model = {{"model", "model.language_model"}};
  spec.layout.older = {{"model.language_model", "language_model.model"},
                       {"lm_head", "language_model.lm_head"}};
  spec.layout.skipped = {"model.vision_tower.", "model.multi_modal_projector.", "vision_tower.",
                         "multi_modal_projector."};
}

DecoderSpec read_gemma3(const Json& whole) {
  const Json& config = text_of(whole);
  const int64_t pattern =
      find(config, "sliding_window_pattern") ? read_size(config, "sliding_window_pattern") : 6;
  read_rope_of(config, kFull);  // before llama_like() does
  const nn::RopeSpec local = read_rope_of(config, kSliding);
  DecoderSpec spec = gemma_like(with_rope(config, kFull), pattern);
  spec.local_rope = local;
  spec.local_rope.rotary_dim = spec.rope.rotary_dim;
  for (LayerSpec& layer : spec.layers) {
    AttentionSpec& a = layer.attention();
    a.qk_norm = true;
    a.local_rope = a.window > 0;
  }
  spec.softcap = read_softcap(config, "final_logit_softcapping");
  nest_gemma(spec, whole);
  return spec;
}

}  // namespace

Family gemma3() {
  return {.name = "gemma3",
          .architectures = {"Gemma3ForConditionalGeneration", "Gemma3ForCausalLM"},
          .keys = {"query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
                   "rope_local_base_freq"},
          .spec = read_gemma3,
          .also = {"gemma3_text"},
          .nested = true,
          .classifier = false,
          .absent = {{"vocab_size", 262208},
                     {"num_attention_heads", 8},
                     {"num_key_value_heads", 4},
                     {"head_dim", 256},
                     {"max_position_embeddings", 131072},
                     {"query_pre_attn_scalar", 256},
                     {"sliding_window", 4096},
                     {"tie_word_embeddings", true}}};
}

}  // namespace twinkle::model
