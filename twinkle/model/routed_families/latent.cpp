#include "twinkle/model/routed_families/latent.h"

#include <cmath>

#include "twinkle/base/error.h"

namespace twinkle::model {
namespace {

// 1 / sqrt(the query's size), and with YaRN m^2: what it multiplies q and k with elsewhere, here
// their parts without rope get, too.
double scale_of(const Json& config, const nn::RopeSpec& rope, int64_t query_dim) {
  const double plain = 1 / std::sqrt(static_cast<double>(query_dim));
  if (rope.kind == nn::RopeKind::kYarn) {
    const double all = rope.mscale_all_dim.value_or(0);
    const double m = all == 0 || rope.factor <= 1 ? 1 : 0.1 * all * std::log(rope.factor) + 1;
    return plain * m * m;
  }
  const Json* of = find_rope(config);
  const bool scaled = of && find(*of, "mscale_all_dim");
  require(rope.kind == nn::RopeKind::kDefault && !scaled, Code::kInvalid,
          "model: the config's rope is ", of ? boost::json::serialize(*of) : "",
          "; with latent attention it is known of kinds default and yarn");
  return plain;
}

}  // namespace

DecoderSpec latent_like(const Json& config) {
  DecoderSpec spec = llama_like(config);
  LatentSpec latent{.num_heads = read_size(config, "num_attention_heads"),
                    .kv_rank = read_size(config, "kv_lora_rank"),
                    .nope_dim = read_size(config, "qk_nope_head_dim"),
                    .rope_dim = read_size(config, "qk_rope_head_dim"),
                    .value_dim = read_size(config, "v_head_dim"),
                    .bias = get_or(config, "attention_bias", false)};
  if (find(config, "q_lora_rank")) latent.q_rank = read_size(config, "q_lora_rank");
  require(latent.rope_dim % 2 == 0, Code::kInvalid, "model: config field 'qk_rope_head_dim' is ",
          latent.rope_dim, ", rope needs an even one");
  const auto heads = get_or<int64_t>(config, "num_key_value_heads", latent.num_heads);
  require(heads == latent.num_heads, Code::kInvalid,
          "model: config field 'num_key_value_heads' is ", heads,
          "; with latent attention it is num_attention_heads, ", latent.num_heads);
  require_value<int64_t>(config, "moe_layer_freq", 1);
  require_value(config, "mlp_bias", false);
  spec.rope.rotary_dim = latent.rope_dim;
  spec.rope.interleaved = read_flag(config, "rope_interleave", true);
  latent.scale = scale_of(config, spec.rope, latent.nope_dim + latent.rope_dim);
  for (LayerSpec& layer : spec.layers) layer.mixer = latent;
  return spec;
}

}  // namespace twinkle::model
