// For tests: configs of tiny models with routed experts, latent attention or the gated delta rule,
// flat, with tiny_config's sizes.
#pragma once
#include <string>

#include "twinkle/model/tiny_model.h"

namespace twinkle::model {

inline void set_fields(JsonObject& config, const JsonObject& fields) {
  for (const auto& [key, value] : fields) config[key] = value;
}

// Three of eight experts a token; the family decides whether there is a shared one, too.
inline JsonObject expert_fields(const std::string& num_experts) {
  return {{num_experts, 8},
          {"num_experts_per_tok", 3},
          {"moe_intermediate_size", 24},
          {"shared_expert_intermediate_size", 40}};
}

inline JsonObject latent_fields() {
  return {{"num_key_value_heads", 4}, {"q_lora_rank", 20},     {"kv_lora_rank", 24},
          {"qk_nope_head_dim", 16},   {"qk_rope_head_dim", 8}, {"v_head_dim", 12}};
}

inline JsonObject delta_fields() {
  return {{"linear_num_key_heads", 2},
          {"linear_num_value_heads", 4},
          {"linear_key_head_dim", 8},
          {"linear_value_head_dim", 12},
          {"partial_rotary_factor", 0.5}};
}

// As tiny_config, of any family of one of these kinds. Of qwen3_5_moe and qwen3_next every layer is
// routed; of deepseek_v2 and deepseek_v3 those from the second on.
inline JsonObject tiny_family(const std::string& family) {
  JsonObject config = tiny_config(family);
  const bool deepseek = family.starts_with("deepseek"), latent = family.starts_with("deepseek_v");
  const bool delta = family.starts_with("qwen3_5") || family == "qwen3_next";
  if (latent) set_fields(config, latent_fields());
  if (delta) set_fields(config, delta_fields());
  if (family != "qwen3_5")
    set_fields(config,
               expert_fields(deepseek || family == "glm4_moe"             ? "n_routed_experts"
                             : family == "mixtral" || family == "gpt_oss" ? "num_local_experts"
                                                                          : "num_experts"));
  if (latent) config["first_k_dense_replace"] = 1;
  if (family == "gpt_oss") set_fields(config, {{"sliding_window", 9}, {"swiglu_limit", 1.5}});
  if (family == "deepseek_v3") set_fields(config, {{"n_group", 4}, {"topk_group", 2}});
  return config;
}

}  // namespace twinkle::model
