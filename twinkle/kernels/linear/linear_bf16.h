// x W^T + b in bf16 for any number of rows. Each output is one chain of float32 sums over the
// inputs, whatever path computes it, so a row has the same bits alone, among hundreds, and on any
// number of threads. A few rows cost one pass over the weights at the speed of memory. m rows, I
// inputs, O outputs.
#pragma once
#include <ATen/core/Tensor.h>

namespace twinkle::kernels {

enum class LinearPath { kBest, kPortable };

// x [m, I], weight [O, I], or the transposed view of a contiguous [I, O], and bias [O] or
// undefined, all bf16, x and bias contiguous; [m, O] bf16. An output is summed over I in order by
// pairs, a pair's second product first (vdpbf16ps), then the bias is added; one rounding to bf16.
at::Tensor linear_bf16(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {},
                       LinearPath path = LinearPath::kBest);

// Whether this processor has the instructions that make linear_bf16 fast.
bool linear_bf16_is_fast();

}  // namespace twinkle::kernels
