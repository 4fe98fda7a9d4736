// x W^T + b in float32 in an order of summation that the caller names, so that a row alone can have
// the bits that a library gives it among hundreds. No sum sees another row. Made for few rows:
// costs a pass over the weights for each 8 of them. m rows, I inputs, O outputs.
#pragma once
#include <ATen/core/Tensor.h>

#include "twinkle/kernels/linear/linear_f32_product.h"

namespace twinkle::kernels {

// x [m, I], weight [O, I], bias [O] or undefined, float32 and
// contiguous; [m, O]. The inputs are taken in runs of `run`, at least 1. A run's sum begins at zero
// and takes its products in order, fused (one rounding for a product and its sum); the runs' sums
// are added in order, and the bias last.
at::Tensor linear_f32_thin(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                           int64_t run);

// Whether this processor fuses products and sums, without which linear_f32_thin throws.
bool linear_f32_thin_is_possible();

}  // namespace twinkle::kernels
