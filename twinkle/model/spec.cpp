#include "twinkle/model/spec.h"

#include <algorithm>
#include <array>
#include <optional>

#include "twinkle/base/json.h"

namespace twinkle::model {
namespace {

std::string text_of(const std::string& value) { return value; }
std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(int64_t value) { return std::to_string(value); }
std::string text_of(double value) { return boost::json::serialize(Json(value)); }
std::string text_of(const std::optional<double>& value) {
  return value ? text_of(*value) : "missing";
}

std::string text_of(const std::vector<double>& values) {
  return boost::json::serialize(JsonArray(values.begin(), values.end()));
}

bool same(double a, double b) { return static_cast<float>(a) == static_cast<float>(b); }
bool same(const std::optional<double>& a, const std::optional<double>& b) {
  return a.has_value() == b.has_value() && (!a || same(*a, *b));
}
bool same(const std::vector<double>& a, const std::vector<double>& b) {
  return std::ranges::equal(a, b, [](double x, double y) { return same(x, y); });
}
template <class T>
bool same(const T& a, const T& b) {
  return a == b;
}

std::string kind_of(const nn::RopeSpec& rope) {
  return std::array{"default", "linear", "yarn", "llama3", "longrope"}.at(
      static_cast<size_t>(rope.kind));
}

std::string kind_of(const AttentionSpec&) { return "attention"; }
std::string kind_of(const DeltaSpec&) { return "linear attention"; }
std::string kind_of(const LatentSpec&) { return "latent attention"; }
std::string kind_of(const GatedMlpSpec&) { return "gated"; }
std::string kind_of(const ExpertsSpec&) { return "experts"; }

// Each calls check(name, value, other value) for every field.
template <class Check>
void compare(const AttentionSpec& a, const AttentionSpec& b, const Check& check) {
  check("num_attention_heads", a.num_heads, b.num_heads);
  check("num_key_value_heads", a.num_kv_heads, b.num_kv_heads);
  check("head_dim", a.head_dim, b.head_dim);
  check("attention_bias", a.qkv_bias, b.qkv_bias);
  check("attention_bias (of o_proj)", a.o_bias, b.o_bias);
  check("q_norm", a.qk_norm, b.qk_norm);
  check("sliding_window", a.window, b.window);
  check("query_pre_attn_scalar (the scores' scale)", a.scale, b.scale);
  check("attn_logit_softcapping", a.softcap, b.softcap);
  check("rope_local_base_freq (a layer that turns by it)", a.local_rope, b.local_rope);
  check("attn_output_gate", a.output_gate, b.output_gate);
  check("sinks", a.sinks, b.sinks);
  check("fused q, k and v", static_cast<int64_t>(a.projections),
        static_cast<int64_t>(b.projections));
}

template <class Check>
void compare(const DeltaSpec& a, const DeltaSpec& b, const Check& check) {
  check("linear_num_key_heads", a.num_key_heads, b.num_key_heads);
  check("linear_num_value_heads", a.num_value_heads, b.num_value_heads);
  check("linear_key_head_dim", a.key_dim, b.key_dim);
  check("linear_value_head_dim", a.value_dim, b.value_dim);
  check("in_proj_qkvz", a.by_key_head, b.by_key_head);
}

template <class Check>
void compare(const LatentSpec& a, const LatentSpec& b, const Check& check) {
  check("num_attention_heads", a.num_heads, b.num_heads);
  check("q_lora_rank", a.q_rank, b.q_rank);
  check("kv_lora_rank", a.kv_rank, b.kv_rank);
  check("qk_nope_head_dim", a.nope_dim, b.nope_dim);
  check("qk_rope_head_dim", a.rope_dim, b.rope_dim);
  check("v_head_dim", a.value_dim, b.value_dim);
  check("attention_bias", a.bias, b.bias);
  check("mscale_all_dim (the scores' scale)", a.scale, b.scale);
}

template <class Check>
void compare(const GatedMlpSpec& a, const GatedMlpSpec& b, const Check& check) {
  check("intermediate_size", a.intermediate_size, b.intermediate_size);
  check("mlp_bias", a.bias, b.bias);
  check("gate_up_proj", a.fused, b.fused);
  check("hidden_activation (gelu)", a.activation == nn::Activation::kGeluTanh,
        b.activation == nn::Activation::kGeluTanh);
}

template <class Check>
void compare(const ExpertsSpec& a, const ExpertsSpec& b, const Check& check) {
  check("num_experts", a.num_experts, b.num_experts);
  check("moe_intermediate_size", a.intermediate_size, b.intermediate_size);
  check("num_experts_per_tok", a.route.top_k, b.route.top_k);
  check("scoring_func", static_cast<int64_t>(a.route.score), static_cast<int64_t>(b.route.score));
  check("n_group", a.route.groups, b.route.groups);
  check("topk_group", a.route.top_groups, b.route.top_groups);
  check("groups by two", a.route.group_by_two, b.route.group_by_two);
  check("norm_topk_prob", a.route.normalise, b.route.normalise);
  check("norm_topk_prob (its epsilon)", a.route.norm_eps, b.route.norm_eps);
  check("routed_scaling_factor", a.route.scale, b.route.scale);
  check("e_score_correction_bias", a.correction, b.correction);
  check("shared_expert_intermediate_size", a.shared_size, b.shared_size);
  check("shared experts' name", std::string(a.shared_name), std::string(b.shared_name));
  check("shared_expert_gate", a.shared_gate, b.shared_gate);
  check("clamped experts", a.clamped.has_value(), b.clamped.has_value());
  if (!a.clamped || !b.clamped) return;
  check("swiglu_limit", a.clamped->limit, b.clamped->limit);
  check("swiglu_alpha", a.clamped->alpha, b.clamped->alpha);
}

template <class Check>
void compare(const nn::RopeSpec& a, const nn::RopeSpec& b, const Check& check) {
  check("rope_type", kind_of(a), kind_of(b));
  check("rope_theta", a.theta, b.theta);
  check("partial_rotary_factor (dims)", a.rotary_dim, b.rotary_dim);
  check("interleaved rope", a.interleaved, b.interleaved);
  check("rope factor", a.factor, b.factor);
  check("original_max_position_embeddings", a.original_max_position, b.original_max_position);
  check("low_freq_factor", a.low_freq_factor, b.low_freq_factor);
  check("high_freq_factor", a.high_freq_factor, b.high_freq_factor);
  check("beta_fast", a.beta_fast, b.beta_fast);
  check("beta_slow", a.beta_slow, b.beta_slow);
  check("rope truncate", a.truncate, b.truncate);
  check("attention_factor", a.attention_factor, b.attention_factor);
  check("mscale", a.mscale, b.mscale);
  check("mscale_all_dim", a.mscale_all_dim, b.mscale_all_dim);
  check("short_factor", a.short_factor, b.short_factor);
  check("long_factor", a.long_factor, b.long_factor);
}

// For blocks of one kind; for two kinds, `key` tells them apart.
template <class... Kinds, class Check>
void compare(const char* key, const std::variant<Kinds...>& a, const std::variant<Kinds...>& b,
             const Check& check) {
  const auto kind = [](const auto& spec) { return kind_of(spec); };
  check(key, std::visit(kind, a), std::visit(kind, b));
  std::visit(
      [&]<class Kind>(const Kind& mine) {
        if (const auto* other = std::get_if<Kind>(&b)) compare(mine, *other, check);
      },
      a);
}

}  // namespace

std::vector<size_t> DecoderSpec::routed_layers() const {
  std::vector<size_t> out;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].experts()) out.push_back(i);
  }
  return out;
}

std::string difference(const DecoderSpec& ours, const DecoderSpec& other) {
  std::string found, where;
  const auto check = [&](const char* key, const auto& mine, const auto& others) {
    if (found.empty() && !same(mine, others))
      found = key + where + " is " + text_of(others) + ", this model's is " + text_of(mine);
  };
  check("model_type", ours.family, other.family);
  check("vocab_size", ours.vocab_size, other.vocab_size);
  check("hidden_size", ours.hidden_size, other.hidden_size);
  check("num_hidden_layers", ours.num_layers(), other.num_layers());
  check("rms_norm_eps", ours.norm.eps, other.norm.eps);
  check("zero-centred norms", ours.norm.zero_centred, other.norm.zero_centred);
  check("norms of the blocks' outputs", ours.sandwich, other.sandwich);
  check("tie_word_embeddings", ours.tied_head, other.tied_head);
  check("embeddings' scale", ours.embed_scale, other.embed_scale);
  check("final_logit_softcapping", ours.softcap, other.softcap);
  compare(ours.rope, other.rope, check);
  where = " (of windowed layers)";
  compare(ours.local_rope, other.local_rope, check);
  where.clear();
  for (size_t i = 0; found.empty() && i < ours.layers.size(); ++i) {
    if (i > 0) where = " (of layer " + std::to_string(i) + ")";
    compare("layer_types", ours.layers[i].mixer, other.layers[i].mixer, check);
    compare("mlp", ours.layers[i].mlp, other.layers[i].mlp, check);
  }
  return found;
}

}  // namespace twinkle::model
