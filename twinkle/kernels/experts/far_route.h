// The weights of experts that a router did not choose, and that may all be so far below its largest
// logit that the sum of their scores, by which route.h divides, is 0 in its type, or has lost its
// last digits: then they are the softmax of the experts' logits, which the quotient is. Over
// tensors as in route.h.
#pragma once
#include <ATen/core/Tensor.h>

#include "twinkle/kernels/experts/route.h"

namespace twinkle::kernels {

// A token's experts, and what is known of them.
struct Routed {
  at::Tensor scores;  // [T, E]
  at::Tensor ids;     // [T, k]
};

// As route_weights() where that sum is not so small. `logits` [T, E] are those of the scores.
at::Tensor far_route_weights(const at::Tensor& logits, const Routed& routed,
                             const RouteOptions& options);

// As route_backward() where that sum is not so small. `weights` are far_route_weights()'s.
at::Tensor far_route_backward(const at::Tensor& grad, const at::Tensor& weights,
                              const Routed& routed, const RouteOptions& options);

}  // namespace twinkle::kernels
