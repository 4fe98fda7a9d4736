// y = x W^T + b, with the seam through which an adapter adds its delta. Knows neither adapters nor
// tenants: an owner is a number that only the Delta understands. Differentiable in x; a trained
// weight's gradient goes to `weight_grad`, per sequence and in order. T tokens, I inputs, O
// outputs, S sequences.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "twinkle/nn/attention/packing.h"
#include "twinkle/nn/batch_invariance.h"
#include "twinkle/nn/weight_grad.h"

namespace twinkle::nn {

// The adapter slots of a batch: one entry per sequence, or, where rows were gathered, per run of
// consecutive tokens of one.
struct Owners {
  std::vector<int32_t> slot;        // -1: no adapter, no delta
  std::vector<uint64_t> key;        // of the sequence's random streams; 0: none (no dropout)
  std::vector<uint8_t> learn;       // 0: its gradients are not added to any buffer
  std::vector<int64_t> first = {};  // its first row is this token of its sequence; empty: 0

  static Owners nobody(int64_t num_sequences);
  static Owners of_slot(int32_t slot);  // one sequence, which learns nothing
  Owners only(size_t sequence) const;
};

// The adapters' part of one linear. Called on the thread that runs the model.
class Delta {
 public:
  virtual ~Delta() = default;
  // Adds to y [T, O] given x [T, I]. Returns what backward() needs.
  virtual std::vector<at::Tensor> forward(const at::Tensor& x_TI, const Packing& packing,
                                          const Owners& owners, at::Tensor& y_TO) = 0;
  // Bytes of what forward() returns for such a batch.
  virtual int64_t saved_bytes(const Packing&, const Owners&) const { return 0; }
  // Adds to dx [T, I] (when defined) and, where owners.learn, to the owners' gradient buffers.
  virtual void backward(const at::Tensor& dy_TO, const at::Tensor& x_TI,
                        const std::vector<at::Tensor>& saved, const Packing& packing,
                        const Owners& owners, at::Tensor& dx_TI) = 0;
};

struct Linear {
  at::Tensor weight;                  // [O, I]
  at::Tensor bias;                    // [O] or undefined
  WeightGrad* weight_grad = nullptr;  // not owned; nullptr: frozen
  WeightGrad* bias_grad = nullptr;
  Delta* delta = nullptr;  // not owned; nullptr: no adapters here
  bool exact = true;       // false: a row's bits may depend on the other rows

  // True if its backward pass reads its input.
  bool needs_input() const { return delta || weight_grad; }
};

// x [T, I] of the weight's dtype. `packing` and `owners` must outlive the backward pass.
at::Tensor linear(const at::Tensor& x_TI, const Linear& w, const Packing& packing,
                  const Owners& owners);

// x W^T + b of w alone, without its delta; and dy W.
at::Tensor product(const at::Tensor& x_TI, const Linear& w);
at::Tensor transposed_product(const at::Tensor& dy_TO, const at::Tensor& weight_OI, bool exact);

// grad += dy^T x of each learning sequence, one product a sequence, in order. dy [T, O], x [T, I].
void add_weight_grad(const at::Tensor& dy_TO, const at::Tensor& x_TI, const at::Tensor& weight,
                     const Packing& packing, const Owners& owners, WeightGrad& grad);

}  // namespace twinkle::nn
