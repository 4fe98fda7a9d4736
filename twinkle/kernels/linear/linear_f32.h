// x W^T + b in float32 in one order of summation for any number of rows and threads, whichever
// loop computes a row: no sum sees another row. m rows, I inputs, O outputs.
#pragma once
#include <ATen/core/Tensor.h>

#include "twinkle/kernels/simd/simd.h"

namespace twinkle::kernels {

// x [m, I] contiguous, weight [O, I] contiguous or a transposed view of a contiguous one, bias [O]
// or undefined, float32 on the CPU; [m, O]. Inputs are taken in runs of kSumRun. A run's sum begins
// at zero and takes its products in order, fused (one rounding for a product and its sum) where the
// processor can; the runs' sums are added in order, and the bias last. Error kInvalid: other
// shapes, types or layouts.
at::Tensor linear_f32(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {},
                      const Simd& simd = best_simd());

// y += x W^T, y [m, O] contiguous float32 on the CPU: bit for bit the product, then the sum.
void add_linear_f32(at::Tensor& y, const at::Tensor& x, const at::Tensor& weight,
                    const Simd& simd = best_simd());

}  // namespace twinkle::kernels
