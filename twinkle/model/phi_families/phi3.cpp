// Phi-3, Phi-3.5 and Phi-4-mini (Microsoft 2024, 2025): llama with fused projections, a window on
// all layers where the config says one, rope on a share of each head's dims, and longrope (Ding et
// al. 2024), whose frequencies depend on the sequence's length.
#include <cmath>

#include "twinkle/model/family.h"

namespace twinkle::model {
namespace {

constexpr const char* kOriginal = "original_max_position_embeddings";

std::vector<double> read_factors(const Json& rope, const char* key, int64_t count) {
  const Json* list = find(rope, key);
  require(list && list->is_array() && std::ssize(list->get_array()) == count, Code::kInvalid,
          "model: the config's rope must list ", count, " numbers as '", key,
          "', one for each pair of a head's dims that turn");
  std::vector<double> out;
  for (const Json& value : list->get_array()) {
    require(value.is_number(), Code::kInvalid, "model: the config's rope has ",
            boost::json::serialize(value), " in '", key, "', it must be a number");
    out.push_back(value.to_number<double>());
    require(out.back() > 0 && std::isfinite(out.back()), Code::kInvalid,
            "model: the config's rope has ", out.back(), " in '", key,
            "', it must be finite and above 0");
  }
  return out;
}

void read_longrope(DecoderSpec& spec, const Json& config, const Json& rope) {
  spec.rope.kind = nn::RopeKind::kLongRope;
  const int64_t pairs = spec.rope.rotary_dim / 2;
  spec.rope.short_factor = read_factors(rope, "short_factor", pairs);
  spec.rope.long_factor = read_factors(rope, "long_factor", pairs);
  const int64_t original = read_size(config, kOriginal);
  require(get_or(rope, kOriginal, original) == original, Code::kInvalid,
          "model: the config's rope has ", kOriginal, " ", get_or(rope, kOriginal, original),
          ", but the field beside it, which transformers takes, is ", original);
  require(original > 1, Code::kInvalid, "model: config field '", kOriginal,
          "' is 1, with longrope it must be at least 2");
  spec.rope.original_max_position = original;
  spec.rope.factor = find(rope, "factor")
                         ? read_rope_number(rope, "factor")
                         : static_cast<double>(spec.max_positions) / static_cast<double>(original);
  if (!find(rope, "attention_factor")) return;
  const auto factor = get<double>(rope, "attention_factor");
  require(factor >= 1e-3 && factor <= 1e6, Code::kInvalid,
          "model: the config's rope has 'attention_factor' ", factor,
          ", it must be at least 0.001 and at most 1000000");
  spec.rope.attention_factor = factor;
}

// Without longrope, which llama does not have: what its rope says besides.
Json without_longrope(const Json& config, const Json& rope) {
  Json out = config;
  JsonObject plain = rope.get_object();
  for (const char* key : {"type", "rope_type", "short_factor", "long_factor", "factor",
                          "attention_factor", kOriginal})
    plain.erase(key);
  out.as_object().erase("rope_scaling");
  out.as_object()["rope_parameters"] = plain;
  return out;
}

DecoderSpec read_phi3(const Json& config) {
  for (const char* key : {"resid_pdrop", "embd_pdrop"}) {
    const double dropout = get_or(config, key, 0.0);
    require(dropout == 0.0, Code::kInvalid, "model: ", key, " is ", dropout,
            "; only 0 is supported: set it to 0 in config.json");
  }
  const Json* found = find_rope(config);
  const Json rope = found ? *found : Json(JsonObject{});
  require(rope.is_object(), Code::kInvalid, "model: the config's rope is ",
          boost::json::serialize(rope), ", it must be an object");
  const auto kind = get_or(rope, "rope_type", get_or<std::string>(rope, "type", "default"));
  // Older files call longrope so.
  const bool longrope = kind == "longrope" || kind == "su" || kind == "yarn";
  require(longrope || kind == "default", Code::kInvalid, "model: the config's rope is of type '",
          kind, "'; phi3 has: default, longrope, su, yarn (the last two are longrope's old names)");
  DecoderSpec spec = llama_like(longrope ? without_longrope(config, rope) : config);
  rotate_share(spec, read_rotary_share(config));
  if (longrope) read_longrope(spec, config, rope);
  const int64_t window = find(config, "sliding_window") ? read_size(config, "sliding_window") : 0;
  for (LayerSpec& layer : spec.layers) {
    layer.attention().window = window;
    layer.attention().projections = Projections::kStacked;
    layer.gated_mlp().fused = true;
  }
  return spec;
}

}  // namespace

Family phi3() {
  return {.name = "phi3",
          .architectures = {"Phi3ForCausalLM"},
          .keys = {"partial_rotary_factor"},
          .spec = read_phi3,
          .absent = {{"rms_norm_eps", 1e-5},
                     {"max_position_embeddings", 4096},
                     {"original_max_position_embeddings", 4096}}};
}

}  // namespace twinkle::model
