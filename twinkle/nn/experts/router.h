// The router of a layer with experts: which experts each token goes to, and with what weights
// (kernels/experts/route.h has the formulas). Logits and all that follows are float32 (float64 for
// float64), whatever the model's type: bfloat16's tie at the border of the choice. Differentiable
// in x; the choice itself is a constant. A row's result depends on that row alone. T tokens, E
// experts, k of them for a token, D width.
#pragma once
#include <ATen/core/Tensor.h>

#include "twinkle/kernels/experts/route.h"
#include "twinkle/nn/experts/routing.h"
#include "twinkle/nn/rows.h"
#include "twinkle/nn/weight_grad.h"

namespace twinkle::nn {

struct Router {
  at::Tensor weight;      // [E, D] of the model's type
  at::Tensor correction;  // [E] float32, added to the scores for the choice only, or undefined
  WeightGrad* weight_grad = nullptr;  // not owned; nullptr: frozen
  kernels::RouteOptions options;
  bool exact = true;  // false: a row's bits may depend on the other rows
  AuxLoss aux_loss = AuxLoss::kNone;
  at::Tensor bias = {};             // [E], added to the logits, or undefined
  WeightGrad* bias_grad = nullptr;  // not owned; nullptr: frozen
};

struct Routes {
  at::Tensor ids;      // [T, k] int32, ascending in each row
  at::Tensor weights;  // [T, k] float32
};

// x [T, D] of the weight's type, on the CPU. Experts that are given may lie far below the router's
// own: their weights and gradients are kernels/experts/far_route.h's. An auxiliary loss's gradient
// is added in backward.
Routes route(const at::Tensor& x_TD, const Router& router, const Rows& rows,
             const RoutingOf& routing = {});

}  // namespace twinkle::nn
