// y = x W^T + b, with the seam through which an adapter adds its delta. Knows neither adapters nor
// tenants. Differentiable in x; a trained weight's gradient goes to `weight_grad`, per segment and
// in order. T tokens, I inputs, O outputs.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "twinkle/nn/batch_invariance.h"
#include "twinkle/nn/rows.h"
#include "twinkle/nn/weight_grad.h"

namespace twinkle::nn {

// The adapters' part of one linear. Called on the thread that runs the model.
class Delta {
 public:
  virtual ~Delta() = default;
  // Adds to y [T, O], which has the bias, given x [T, I]. Returns what backward() needs.
  virtual std::vector<at::Tensor> forward(const at::Tensor& x_TI, const Rows& rows,
                                          at::Tensor& y_TO) = 0;
  // The gradient of y as it was before forward(), of that of what it left: the same tensor, but
  // where an adapter does more than to add. Called once, before backward().
  virtual at::Tensor grad_before(const at::Tensor& dy_TO, const std::vector<at::Tensor>&,
                                 const Rows&) {
    return dy_TO;
  }
  // Bytes of what forward() returns for such a batch.
  virtual int64_t saved_bytes(const Rows&) const { return 0; }
  // Adds to dx [T, I] (when defined) and, where rows learn, to their adapters' gradient buffers.
  virtual void backward(const at::Tensor& dy_TO, const at::Tensor& x_TI,
                        const std::vector<at::Tensor>& saved, const Rows& rows,
                        at::Tensor& dx_TI) = 0;
};

struct Linear {
  at::Tensor weight;                  // [O, I]
  at::Tensor bias;                    // [O] or undefined
  WeightGrad* weight_grad = nullptr;  // not owned; nullptr: frozen
  WeightGrad* bias_grad = nullptr;
  Delta* delta = nullptr;  // not owned; nullptr: no adapters here
  bool exact = true;       // false: a row's bits may depend on the other rows
  double softcap = 0;      // cap of a head's logits, which nn/head caps; 0: none

  // True if its backward pass reads its input.
  bool needs_input() const { return delta || weight_grad; }
  // Bytes that its forward keeps for backward besides its input.
  int64_t saved_bytes(const Rows& rows) const { return delta ? delta->saved_bytes(rows) : 0; }
};

// x [T, I] of the weight's dtype.
at::Tensor linear(const at::Tensor& x_TI, const Linear& w, const Rows& rows);

// Says that a product with w comes next: the threads of a CPU fetch its weight while they wait.
void prefetch(const Linear& w);

// x W^T + b of w alone, without its delta; and dy W.
at::Tensor product(const at::Tensor& x_TI, const Linear& w);
at::Tensor transposed_product(const at::Tensor& dy_TO, const at::Tensor& weight_OI, bool exact);

// grad += dy^T x of each learning segment, one product a segment, in order. dy [T, O], x [T, I].
void add_weight_grad(const at::Tensor& dy_TO, const at::Tensor& x_TI, const at::Tensor& weight,
                     const Rows& rows, WeightGrad& grad);
void add_weight_grad(const at::Tensor& dy_TO, const at::Tensor& x_TI, const Rows& rows,
                     at::Tensor sum_OI);  // contiguous
// sum += dy's sum over the rows of each learning segment, in order. dy [T, O].
void add_bias_grad(const at::Tensor& dy_TO, const Rows& rows, at::Tensor sum_O);

}  // namespace twinkle::nn
