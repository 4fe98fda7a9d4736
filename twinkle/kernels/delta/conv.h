// The surroundings of the gated delta rule: a causal convolution of four taps over the tokens of a
// sequence, each channel by itself, with silu, and a norm of every value head with a gate.
// Functions over tensors, no autograd; bf16 and float32 are computed in float32, float64 in
// float64. A row's bits depend on its own sequence alone, however it is cut into calls. CPU only.
// Error kInvalid of each: shapes or types that do not fit, a tensor on a device. T tokens, C
// channels.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "twinkle/kernels/simd/simd.h"

namespace twinkle::kernels {

// A sequence's rows, and the inputs before them: `past` [3, C] of x's type, those before `first`,
// changed to those of the next call. Null: the rows are a whole sequence.
struct ConvRun {
  int64_t row = 0, count = 0, first = 0;
  void* past = nullptr;
};

// silu(sum_j weight[c, 0, j] x[t - 3 + j, c]), zeros before the sequence. x [T, C], weight
// [C, 1, 4]; rows of no run are zero.
at::Tensor conv_silu(const at::Tensor& x, const at::Tensor& weight, std::span<const ConvRun> runs,
                     const Simd& simd = best_simd());

// Whole sequences, cu_seqlens [S + 1]: the gradient of x; that of the weight is added to sum
// [C, 1, 4] (float32; float64 for a float64 x) sequence by sequence, of those that `learn` [S]
// names.
at::Tensor conv_silu_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                              std::span<const int64_t> cu_seqlens, const std::vector<bool>& learn,
                              at::Tensor* sum, const Simd& simd = best_simd());

// x / sqrt(mean(x^2) + eps) * weight * silu(gate) over the last dim, rounded once: x and gate
// [..., D], weight [D] of any float type.
at::Tensor gated_rms_norm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                          double eps, const Simd& simd = best_simd());

struct GatedNormGrads {
  at::Tensor x, gate;
};
// x is [T, ..., D]; the weight's gradient is added to sum [D] as conv_silu_backward's is.
GatedNormGrads gated_rms_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                       const at::Tensor& gate, const at::Tensor& weight, double eps,
                                       std::span<const int64_t> cu_seqlens,
                                       const std::vector<bool>& learn, at::Tensor* sum,
                                       const Simd& simd = best_simd());

}  // namespace twinkle::kernels
