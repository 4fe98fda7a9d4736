// The routed experts of a layer: y_t = sum over its experts e, in the order of their ids, of w_te
// down_e(silu(gate_e x_t) up_e x_t) (Shazeer et al. 2017, eq. 1; Shazeer 2020, SwiGLU), summed in
// float32 and rounded once. The weight multiplies the input of down_e: what is added up is then all
// that is left of an expert. Every routed row is computed, however many an expert gets, and its
// bits depend on it alone. Knows neither adapters nor tenants: each expert's linears have the seam
// of any linear. Differentiable in x and the weights; the activation is computed again in backward.
// On the CPU. T tokens, E experts, D width, F inner width.
//
// gpt-oss has another form of them, in which its checkpoints are used as they are: both products
// have a bias, the activation is ClampedSwiglu, the stacks are turned, and an expert's gates and
// ups take turns.
#pragma once
#include <ATen/core/Tensor.h>

#include <deque>
#include <optional>

#include "twinkle/kernels/experts/routed_rows.h"
#include "twinkle/nn/experts/router.h"
#include "twinkle/nn/linear.h"

namespace twinkle::nn {

// The linears of one expert, views of the stacks, for adapters: gradients of the stacks' go there.
struct Expert {
  Linear gate_up;   // [2 F, D]: both in one, for adapters whose gate and up share a factor
  Linear gate, up;  // [F, D]
  Linear down;      // [D, F]
};

struct Experts {
  at::Tensor gate_up;  // [E, 2 F, D]: an expert's gate before its up
  at::Tensor down;     // [E, D, F]
  WeightGrad *gate_up_grad = nullptr, *down_grad = nullptr;  // not owned; nullptr: frozen
  std::deque<Expert> each = {};                              // [E]; they stay where they are
  // gpt-oss's form, if set: gate_up is [E, D, 2 F], gates at even places and ups at odd ones, and
  // down [E, F, D].
  std::optional<kernels::ClampedSwiglu> clamped = {};
  at::Tensor gate_up_bias = {}, down_bias = {};  // [E, 2 F], [E, D]
  WeightGrad *gate_up_bias_grad = nullptr, *down_bias_grad = nullptr;

  // Makes `each` of the stacks.
  void cut();
  int64_t count() const { return gate_up.size(0); }
  int64_t width() const { return down.size(clamped ? 1 : 2); }  // F
  // Bytes that the forward of these rows keeps for backward, without x and the result; of adapters
  // what it is where all experts get as many rows.
  int64_t saved_bytes(const Rows& rows, int64_t top_k) const;
  bool needs_input() const;
};

// x [T, D] of the stacks' type.
at::Tensor experts(const at::Tensor& x_TD, const Routes& routes, const Experts& experts,
                   const Rows& rows);

}  // namespace twinkle::nn
