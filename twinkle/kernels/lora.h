// Low-rank products of one sequence, y += scale * (x A^T) B^T, forward and backward, in float32
// (float64 for double inputs) whatever the type of x. Thin and ragged: rank r costs r. T tokens, I
// inputs, O outputs, r rank. A row's result depends on nothing but that row; gradients are reduced
// over the tokens of one sequence, in order, from zero, and then added: the same bits whatever else
// is in the batch and however many threads run.
#pragma once
#include <ATen/ATen.h>

#include <cstdint>

namespace twinkle::kernels {

// The two factors of one adapter on one linear, and the layouts that the kernels read. Rows are
// padded to kLane.
struct LoraFactors {
  static constexpr int64_t kLane = 16;

  at::Tensor a;  // [r, I] float32 (or float64): the truth, PEFT's lora_A.weight
  at::Tensor b;  // [O, r]: PEFT's lora_B.weight
  double scale = 1.0;

  // Derived by repack(): new tensors each time, never written again. A change of a or b asks for
  // it, or for unpack().
  at::Tensor a_IR;  // [I, R] with R = r rounded up to kLane, zero padded
  at::Tensor b_OR;  // [O, R]
  at::Tensor b_rO;  // [r, O]

  int64_t rank() const { return a.size(0); }
  void repack();
  bool packed() const { return a_IR.defined(); }
  void unpack() { a_IR = b_OR = b_rO = at::Tensor(); }
  // Bytes of what lora_forward returns for so many tokens.
  int64_t saved_bytes(int64_t tokens) const;
};

// Dropout on the adapter's input (Srivastava et al. 2014): an element is dropped with probability
// `p`, others are scaled by 1 / (1 - p). The stream is a function of (key, token's index in its
// sequence, input), so it is the same in forward and backward, and in any batch. p = 0 or key = 0:
// none.
struct LoraDropout {
  double p = 0.0;
  uint64_t key = 0;
};

// Rows [begin, end) of the packed tensors are one sequence. x [T, I], y [T, O] of one type; adds to
// y's rows. Returns h = dropout(x) A^T as [end - begin, R] for the backward.
at::Tensor lora_forward(const at::Tensor& x, int64_t begin, int64_t end, const LoraFactors& f,
                        const LoraDropout& dropout, at::Tensor& y);

// Adds to dx's rows (when defined), and to grad_a [r, I] and grad_b [O, r] (when defined), float32.
void lora_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& h, int64_t begin,
                   int64_t end, const LoraFactors& f, const LoraDropout& dropout, at::Tensor& dx,
                   at::Tensor& grad_a, at::Tensor& grad_b);

// The mask itself, for tests: [rows, I] of 0 or 1 / (1 - p).
at::Tensor lora_dropout_mask(int64_t rows, int64_t inputs, const LoraDropout& dropout);

}  // namespace twinkle::kernels
