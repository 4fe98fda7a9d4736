#include "twinkle/kernels/optim/update.h"
#include "twinkle/kernels/simd/simd.h"

namespace twinkle::kernels {

void adam_update(const AdamFactors& factors, const AdamArrays& arrays, int64_t n) {
  best_simd().adam(factors, arrays, n);
}

void sgd_update(const SgdFactors& factors, const SgdArrays& arrays, int64_t n) {
  best_simd().sgd(factors, arrays, n);
}

double sum_of_squares(const float* x, int64_t n) { return best_simd().sum_of_squares(x, n); }

}  // namespace twinkle::kernels
