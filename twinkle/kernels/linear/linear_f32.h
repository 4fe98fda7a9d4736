// x W^T + b in float32 for a few rows, in an order of summation that the caller names, so that a
// row alone can have the bits that a library gives it among hundreds. Costs one pass over the
// weights. m rows, I inputs, O outputs.
#pragma once
#include <ATen/core/Tensor.h>

namespace twinkle::kernels {

inline constexpr int64_t kMostThinRows = 8;

// x [m, I] with m up to kMostThinRows, weight [O, I], bias [O] or undefined, float32 and
// contiguous; [m, O]. The inputs are taken in runs of `run`, at least 1. A run's sum begins at zero
// and takes its products in order, fused (one rounding for a product and its sum); the runs' sums
// are added in order, to the bias where there is one.
at::Tensor linear_f32_thin(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                           int64_t run);

// Whether this processor fuses products and sums, without which linear_f32_thin throws.
bool linear_f32_thin_is_possible();

}  // namespace twinkle::kernels
