// GLM-4.5, 4.6 and 4.7 (GLM-4.5 team 2025): rope on the first half of a head, experts by sigmoids
// with a correction of the choice, and a shared expert. The layer behind the last one predicts
// further tokens; it is not read.
#include "twinkle/base/error.h"
#include "twinkle/model/routed_families/routed.h"

namespace twinkle::model {
namespace {

ExpertsSpec experts_of(const Json& config) {
  ExpertsSpec experts = read_experts(config);
  kernels::RouteOptions& route = experts.route;
  route.score = kernels::RouteScore::kSigmoid;
  route.groups = find(config, "n_group") ? read_size(config, "n_group") : 1;
  route.top_groups = find(config, "topk_group") ? read_size(config, "topk_group") : 1;
  route.group_by_two = true;
  route.normalise = get_or(config, "norm_topk_prob", true);
  route.norm_eps = 1e-20;
  route.scale = get_or(config, "routed_scaling_factor", 1.0);
  experts.correction = true;
  experts.shared_name = "shared_experts";
  const auto shared = get_or<int64_t>(config, "n_shared_experts", 1);
  experts.shared_size = shared * experts.intermediate_size;
  return experts;
}

void check_word(const Json& config, const char* key, const std::string& known) {
  const auto value = get_or<std::string>(config, key, known);
  require(value == known, Code::kInvalid, "model: config field '", key, "' is '", value,
          "'; known: ", known);
}

}  // namespace

Family glm4_moe() {
  return {.name = "glm4_moe",
          .architectures = {"Glm4MoeForCausalLM"},
          .keys = {"n_routed_experts", "num_local_experts", "use_qk_norm", "partial_rotary_factor",
                   "scoring_func", "topk_method"},
          .spec = [](const Json& config) {
            check_word(config, "scoring_func", "sigmoid");
            check_word(config, "topk_method", "noaux_tc");
            DecoderSpec spec = llama_like(config);
            for (LayerSpec& layer : spec.layers) {
              AttentionSpec& a = layer.attention();
              a.qkv_bias = get_or(config, "attention_bias", false);
              a.qk_norm = get_or(config, "use_qk_norm", false);
            }
            const auto head = static_cast<double>(spec.layers[0].attention().head_dim);
            spec.rope.rotary_dim = static_cast<int64_t>(head * read_rotary_share(config, 0.5));
            route_layers(spec, experts_of(config), deepseek_routed(config, 1));
            spec.layout.stacks = expert_stacks("mlp", "gate_proj", "up_proj", "down_proj");
            spec.layout.skipped = {"model.layers." + std::to_string(spec.num_layers()) + "."};
            return spec;
          }};
}

}  // namespace twinkle::model
