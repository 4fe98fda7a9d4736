#include "twinkle/model/routed_families/routed.h"

#include <algorithm>

#include "twinkle/base/error.h"

namespace twinkle::model {
namespace {

// As kernels::check_route, by the keys of config.json.
void check_groups(const kernels::RouteOptions& route, int64_t num_experts) {
  require(num_experts % route.groups == 0, Code::kInvalid, "model: config field 'n_group' is ",
          route.groups, ", it must divide the number of experts, ", num_experts);
  require(route.top_groups <= route.groups, Code::kInvalid, "model: config field 'topk_group' is ",
          route.top_groups, ", it must be at most n_group, ", route.groups);
  const int64_t size = num_experts / route.groups;
  require(route.top_k <= size * route.top_groups, Code::kInvalid,
          "model: config field 'num_experts_per_tok' is ", route.top_k, ", it must be at most ",
          size * route.top_groups, ", the experts of topk_group, ", route.top_groups,
          ", of n_group, ", route.groups, ", groups");
  require(route.groups == 1 || !route.group_by_two || size >= 2, Code::kInvalid,
          "model: config field 'n_group' is ", route.groups, ", it must be at most ",
          num_experts / 2, ": a group is worth what its two best experts are");
}

}  // namespace

double read_route_scale(const Json& config, double absent) {
  const double scale = get_or(config, "routed_scaling_factor", absent);
  require(scale > 0 && scale <= 1e6, Code::kInvalid,
          "model: config field 'routed_scaling_factor' is ", scale,
          ", it must be above 0 and at most 1000000");
  return scale;
}

ExpertsSpec read_experts(const Json& config) {
  ExpertsSpec experts;
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (find(config, key)) experts.num_experts = read_size(config, key);
  }
  if (experts.num_experts == 0) experts.num_experts = read_size(config, "num_experts");  // throws
  const bool own = find(config, "moe_intermediate_size") != nullptr;
  experts.intermediate_size =
      read_size(config, own ? "moe_intermediate_size" : "intermediate_size");
  experts.route.top_k = read_size(config, "num_experts_per_tok");
  require(experts.route.top_k <= experts.num_experts, Code::kInvalid,
          "model: config field 'num_experts_per_tok' is ", experts.route.top_k,
          ", it must be at most the number of experts, ", experts.num_experts);
  experts.aux_loss = nn::AuxLoss::kAllLayers;
  return experts;
}

void share_experts(const Json& config, int64_t absent, ExpertsSpec& experts) {
  experts.shared_name = "shared_experts";
  const bool given = config.get_object().contains("n_shared_experts");
  const auto num = get_or<int64_t>(config, "n_shared_experts", given ? 0 : absent);
  require(num >= 0 && num <= int64_t{1} << 20, Code::kInvalid,
          "model: config field 'n_shared_experts' is ", num, ", it must be from 0 to ",
          int64_t{1} << 20);
  experts.shared_size = num * experts.intermediate_size;
}

ExpertsSpec corrected_experts(const Json& config, const kernels::RouteOptions& absent) {
  require_value<std::string>(config, "scoring_func", "sigmoid");
  require_value<std::string>(config, "topk_method", "noaux_tc");
  ExpertsSpec experts = read_experts(config);
  kernels::RouteOptions& route = experts.route;
  route.score = kernels::RouteScore::kSigmoid;
  route.groups = find(config, "n_group") ? read_size(config, "n_group") : absent.groups;
  route.top_groups =
      find(config, "topk_group") ? read_size(config, "topk_group") : absent.top_groups;
  route.group_by_two = true;
  route.normalise = read_flag(config, "norm_topk_prob", true);
  route.norm_eps = 1e-20;
  route.scale = read_route_scale(config, absent.scale);
  experts.correction = true;
  experts.aux_loss = nn::AuxLoss::kNone;  // the correction is in its place
  share_experts(config, 1, experts);
  return experts;
}

void route_layers(DecoderSpec& spec, const ExpertsSpec& experts,
                  const std::function<bool(int64_t)>& is_routed) {
  check_groups(experts.route, experts.num_experts);
  spec.layout.has_stacked_experts = true;
  for (int64_t i = 0; i < spec.num_layers(); ++i) {
    if (is_routed(i)) spec.layers[static_cast<size_t>(i)].mlp = experts;
  }
}

std::function<bool(int64_t)> qwen_routed(const Json& config) {
  std::vector<int64_t> dense;
  if (const Json* list = find(config, "mlp_only_layers")) {
    require(list->is_array() &&
                std::ranges::all_of(list->get_array(), [](const Json& i) { return i.is_int64(); }),
            Code::kInvalid, "model: config field 'mlp_only_layers' is ",
            boost::json::serialize(*list), ", it must be a list of layers");
    for (const Json& layer : list->get_array()) dense.push_back(layer.get_int64());
  }
  const int64_t step =
      find(config, "decoder_sparse_step") ? read_size(config, "decoder_sparse_step") : 1;
  return [dense, step](int64_t layer) {
    return (layer + 1) % step == 0 && std::ranges::find(dense, layer) == dense.end();
  };
}

void route_as_qwen(DecoderSpec& spec, const Json& config, bool normalise,
                   const std::function<bool(int64_t)>& is_routed) {
  ExpertsSpec experts = read_experts(config);
  experts.route.normalise = normalise;
  experts.shared_size = read_size(config, "shared_expert_intermediate_size");
  experts.shared_gate = true;
  route_layers(spec, experts, is_routed);
  spec.layout.stacks = expert_stacks("mlp", "gate_proj", "up_proj", "down_proj");
}

std::function<bool(int64_t)> deepseek_routed(const Json& config, int64_t dense) {
  const auto first = get_or<int64_t>(config, "first_k_dense_replace", dense);
  const int64_t step = find(config, "moe_layer_freq") ? read_size(config, "moe_layer_freq") : 1;
  return [first, step](int64_t layer) { return layer >= first && layer % step == 0; };
}

std::vector<std::string> layers_behind(int64_t num_layers) {
  constexpr int64_t most = 64;  // published models have one
  std::vector<std::string> out;
  for (int64_t i = 0; i < most; ++i)
    out.push_back("model.layers." + std::to_string(num_layers + i) + ".");
  return out;
}

std::vector<Stack> expert_stacks(const std::string& block, const std::string& gate,
                                 const std::string& up, const std::string& down) {
  const std::string stack = block + ".experts.", each = stack + "*.";
  return {{stack + "gate_up_proj", {each + gate + ".weight", each + up + ".weight"}},
          {stack + "down_proj", {each + down + ".weight"}}};
}

}  // namespace twinkle::model
