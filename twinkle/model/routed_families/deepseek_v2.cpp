// DeepSeek-V2, V2-Lite and V2.5 (DeepSeek-AI 2024): latent attention, experts by the softmax of
// all, in V2 of the best groups alone, and shared ones.
#include "twinkle/base/error.h"
#include "twinkle/model/routed_families/latent.h"
#include "twinkle/model/routed_families/routed.h"

namespace twinkle::model {
namespace {

ExpertsSpec experts_of(const Json& config) {
  ExpertsSpec experts = read_experts(config);
  kernels::RouteOptions& route = experts.route;
  const auto method = get_or<std::string>(config, "topk_method", "greedy");
  require(method == "greedy" || method == "group_limited_greedy", Code::kInvalid,
          "model: config field 'topk_method' is '", method,
          "'; known: greedy, group_limited_greedy");
  if (method == "group_limited_greedy") {
    route.groups = read_size(config, "n_group");
    route.top_groups = read_size(config, "topk_group");
  }
  // transformers leaves it out; in DeepSeek's own code it takes the place of the scale.
  require_value(config, "norm_topk_prob", false);
  route.scale = read_route_scale(config, 1.0);
  experts.aux_loss = nn::AuxLoss::kEachLayer;
  share_experts(config, 2, experts);
  return experts;
}

}  // namespace

DecoderSpec deepseek_v2_spec(const Json& config) {
  require_value<std::string>(config, "scoring_func", "softmax");
  require_value(config, "rope_interleave", true);
  DecoderSpec spec = latent_like(config);
  route_layers(spec, experts_of(config), deepseek_routed(config, 0));
  spec.layout.stacks = expert_stacks("mlp", "gate_proj", "up_proj", "down_proj");
  return spec;
}

Family deepseek_v2() {
  return {.name = "deepseek_v2",
          .architectures = {"DeepseekV2ForCausalLM"},
          .keys = {"kv_lora_rank", "n_routed_experts", "num_experts", "rope_interleave",
                   "scoring_func", "topk_method"},
          .spec = deepseek_v2_spec,
          .classifier = false,
          .absent = {{"q_lora_rank", 1536}}};
}

}  // namespace twinkle::model
