// Low-rank products of the sequences of a batch, y += scale * (dropout(x) A^T) B^T, forward and
// backward, of which a constant product may be subtracted. The factors are read as the type of x,
// so rounded where that is bf16; sums and the values between the two factors are float32 (float64
// for double). Ragged: rank r costs r. T tokens, I inputs, O outputs, r rank. A row's result
// depends on nothing but that row; a gradient is reduced over the rows of one part, in order, from
// zero, and the parts' sums are added in their order: the same bits whatever else is in the batch
// and however many threads run. Error kInvalid: factors that were not packed for the type of x.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "twinkle/kernels/lora/lora_block.h"
#include "twinkle/kernels/simd/simd.h"

namespace twinkle::kernels {

// The two factors of one adapter on one linear.
struct LoraFactors {
  at::Tensor a;  // [r, I] float32 (or float64): the truth, PEFT's lora_A.weight
  at::Tensor b;  // [O, r]: PEFT's lora_B.weight
  double scale = 1.0;
  // As the loops read them, of the type of x: [r, I], undefined where that is a itself, and [r, O].
  // Derived by repack(), new tensors each time, never written again but by refresh(). A change of a
  // or b asks for it, or for unpack().
  at::Tensor a_rI, b_rO;
  // Rows of them behind those of a and b: of a product that never learns.
  int64_t more_rank = 0;

  int64_t rank() const { return a.size(0) + more_rank; }
  const at::Tensor& a_read() const { return a_rI.defined() ? a_rI : a; }
  // `more`: its factors, [more_rank, I] and [O, more_rank], which are subtracted. On the CPU.
  struct More {
    at::Tensor a, b;
  };
  void repack(at::ScalarType type, const More& more = {});
  void refresh();  // repack() into the tensors that are there
  bool packed() const { return b_rO.defined(); }
  void unpack() { a_rI = b_rO = at::Tensor(); }
  // Bytes of what lora_forward returns for so many tokens.
  int64_t saved_bytes(int64_t tokens) const;
};

// Rows [begin, end) of the packed tensors, consecutive tokens of one sequence, and the adapter that
// works on them.
struct LoraPart {
  int64_t begin = 0, end = 0;
  const LoraFactors* factors = nullptr;
  LoraDropout dropout;
  at::Tensor grad_a, grad_b;  // [r, I], [O, r]: backward adds to them; undefined: not wanted
  int64_t first = 0;          // row `begin` is this token of its sequence
  // False: what is added to grad_b is not scaled yet, for lora_add_part() to scale it. On the CPU.
  bool scales_grad = true;
};

// x [T, I], y [T, O] of one type, contiguous; adds to the rows of the parts. Returns
// dropout(x) A^T of all of them, one after the other, for the backward.
at::Tensor lora_forward(const at::Tensor& x, std::span<const LoraPart> parts, at::Tensor& y,
                        const Simd& simd = best_simd());

// Inputs of a backward pass: the gradient of y, the forward's x and what it returned.
struct LoraSaved {
  at::Tensor grad, x, h;
};

// Adds to dx's rows (when defined), and to the parts' gradients. Parts of one adapter name the same
// factors.
void lora_backward(const LoraSaved& saved, std::span<const LoraPart> parts, at::Tensor& dx,
                   const Simd& simd = best_simd());

// sum += scale * part, rounded once: what a backward does with the gradient of one part, which was
// summed elsewhere. float32 on the CPU, contiguous.
void lora_add_part(at::Tensor& sum, const at::Tensor& part, double scale);

// The mask itself, for tests: [rows, I] of 0 or 1 / (1 - p).
at::Tensor lora_dropout_mask(int64_t rows, int64_t inputs, const LoraDropout& dropout,
                             const Simd& simd = best_simd());

}  // namespace twinkle::kernels
