// One pass of an optimizer over n elements, and the sum of squares of a gradient. Formulas only:
// which options make these factors is the optimizer's business. An element's result depends on that
// element alone.
#pragma once
#include <cstdint>

namespace twinkle::kernels {

// g = grad * scale + l2 p; m += (g - m) first; v = v keep_second + g g second;
// p -= rate * m / (sqrt(v) / root + eps) + shrink * p.
struct AdamFactors {
  float scale, l2, shrink, first, second, keep_second, root, eps, rate;
};
struct AdamArrays {
  const float* grad;
  float *value, *mean, *square;  // p, m, v
};
void adam_update(const AdamFactors& factors, const AdamArrays& arrays, int64_t n);

// g = grad * scale + l2 p; b = b * momentum + g * share; p -= rate * (own g + of_buffer b).
struct SgdFactors {
  float scale, l2, momentum, share, own, of_buffer, rate;
};
struct SgdArrays {
  const float* grad;
  float *value, *buffer;  // p, b; no buffer: b is 0
};
void sgd_update(const SgdFactors& factors, const SgdArrays& arrays, int64_t n);

// In float64, the order of the additions fixed by n.
double sum_of_squares(const float* x, int64_t n);

}  // namespace twinkle::kernels
