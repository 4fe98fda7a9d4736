// Shared by the families with routed experts: how their config.json gives experts, and what their
// checkpoints call them.
#pragma once
#include <functional>

#include "twinkle/model/family.h"

namespace twinkle::model {

// The number of experts (num_experts, num_local_experts or n_routed_experts, by which transformers
// writes the same), their intermediate_size (moe_intermediate_size) and how many a token has
// (num_experts_per_tok), with the auxiliary loss of transformers. Error kInvalid: one is missing or
// impossible.
ExpertsSpec read_experts(const Json& config);

// Gives them n_shared_experts' shared ones; null: none.
void share_experts(const Json& config, int64_t absent, ExpertsSpec& experts);

// Experts by sigmoids with a correction of the choice, as DeepSeek-V3 has them: n_group, topk_group
// and routed_scaling_factor may be absent. Error kInvalid: scoring_func or topk_method are others.
ExpertsSpec corrected_experts(const Json& config, const kernels::RouteOptions& absent = {});

// `routed_scaling_factor`. Error kInvalid: it is not above 0, or beyond 10^6.
double read_route_scale(const Json& config, double absent);

// Gives the layers for which `is_routed` is true these experts. Error kInvalid: n_group or
// topk_group leave no room for num_experts_per_tok.
void route_layers(DecoderSpec& spec, const ExpertsSpec& experts,
                  const std::function<bool(int64_t layer)>& is_routed);

// True for the layers that mlp_only_layers and decoder_sparse_step leave routed.
std::function<bool(int64_t layer)> qwen_routed(const Json& config);
// route_layers() with the experts of Qwen's models that have a shared one: by the softmax of all,
// their weights of sum 1 if `normalise`, next to one that every token passes, behind a sigmoid
// gate; and the layout's stacks of them.
void route_as_qwen(DecoderSpec& spec, const Json& config, bool normalise,
                   const std::function<bool(int64_t layer)>& is_routed);
// For those from first_k_dense_replace on of which moe_layer_freq leaves the number.
std::function<bool(int64_t layer)> deepseek_routed(const Json& config, int64_t dense);

// The names' beginnings of as many layers behind the last one as may predict further tokens
// (Layout::behind).
std::vector<std::string> layers_behind(int64_t num_layers);

// The stacks of experts whose linears are called so, in `block` ("mlp").
std::vector<Stack> expert_stacks(const std::string& block, const std::string& gate,
                                 const std::string& up, const std::string& down);

}  // namespace twinkle::model
