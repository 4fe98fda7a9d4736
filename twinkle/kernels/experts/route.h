// The choice of experts of a token, and their weights. A token's scores are the softmax of its
// logits, or their sigmoid each; the experts of the top_k largest are chosen, from some groups of
// experts alone where the model says so; their scores are the weights, divided by their sum where
// it says so. A row's result depends on that row alone. Over tensors, no autograd, on the CPU;
// float32 or float64, contiguous. T tokens, E experts, k of them for a token. (Shazeer et al. 2017,
// eq. 3 to 5; groups: DeepSeek-V2, section 2.2.2; correction: DeepSeek-V3, eq. 15 and 16)
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace twinkle::kernels {

enum class RouteScore { kSoftmax, kSigmoid };

struct RouteOptions {
  RouteScore score = RouteScore::kSoftmax;
  int64_t top_k = 1;
  // E / groups consecutive experts are a group; 1: all are. Of the others than the top_groups best,
  // none is chosen. A group is worth its largest score, or, by two, the sum of its two largest.
  int64_t groups = 1, top_groups = 1;
  bool group_by_two = false;
  bool normalise = false;  // weights are divided by their sum plus norm_eps
  double norm_eps = 0;
  double scale = 1;  // factor of the weights

  bool operator==(const RouteOptions&) const = default;
};

// Error kInvalid: the options choose more experts than there are, in all or in the chosen groups,
// or the groups do not divide them.
void check_route(const RouteOptions& options, int64_t num_experts);

// [T, E], of logits [T, E]. Error kInvalid: another type, or a tensor on a device.
at::Tensor route_scores(const at::Tensor& logits, RouteScore score);

// [T, k] int32, ascending in each row. `correction` [E], of the scores' type, or undefined, is
// added to the scores for the choice only. Of equal scores the smaller id is chosen, of equal
// groups the first. A row with NaN among its scores, as of an adapter that diverged, gets an expert
// of such a score, and so NaN among its weights; nobody else's row is touched.
at::Tensor route_top_k(const at::Tensor& scores, const at::Tensor& correction,
                       const RouteOptions& options);

// [T, k], of the experts `ids` [T, k].
at::Tensor route_weights(const at::Tensor& scores, const at::Tensor& ids,
                         const RouteOptions& options);

// d loss / d logits [T, E] given d loss / d weights [T, k]; the ids are constants.
at::Tensor route_backward(const at::Tensor& grad, const at::Tensor& scores, const at::Tensor& ids,
                          const RouteOptions& options);

}  // namespace twinkle::kernels
