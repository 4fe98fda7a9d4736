// The gated delta rule between its projections and the output's: the convolution, the rule, the
// gated norm (kernels/delta). Differentiable in the projections; trained weights' gradients go to
// their buffers, per sequence and in order. Backward computes the convolution again and every
// chunk from the state that the forward kept. A row's bits depend on its own sequence alone, and
// are the same when sampling. T tokens, C channels, H value heads of size dv.
#pragma once
#include <ATen/core/Tensor.h>

#include <span>

#include "twinkle/kernels/delta/delta.h"
#include "twinkle/nn/rows.h"
#include "twinkle/nn/weight_grad.h"

namespace twinkle::nn {

struct GatedDelta {
  kernels::DeltaShape shape;
  double eps = 1e-6;                      // for the norm
  at::Tensor conv, a_log, dt_bias, norm;  // [C, 1, 4], [H], [H], [dv]
  // Not owned; nullptr: frozen.
  WeightGrad *conv_grad = nullptr, *a_log_grad = nullptr, *dt_bias_grad = nullptr,
             *norm_grad = nullptr;

  // Bytes that gated_delta() keeps for backward.
  int64_t saved_bytes(const Rows& rows) const;
};

struct DeltaProjections {
  at::Tensor qkv;   // [T, C]: all heads of q, all of k, all of v
  at::Tensor z;     // [T, H dv]: the norm's gate
  at::Tensor a, b;  // [T, H]
};

// Whole sequences, to [T, H dv]. Errors are those of kernels/delta.
at::Tensor gated_delta(const DeltaProjections& in, const GatedDelta& w, const Rows& rows);

// Sequences that go on from their states (kernels::DeltaState), which change. Not differentiable.
at::Tensor gated_delta(const DeltaProjections& in, const GatedDelta& w,
                       std::span<const kernels::DeltaRun> runs);

}  // namespace twinkle::nn
