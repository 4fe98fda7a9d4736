#include "twinkle/kernels/simd/dispatch.h"
#include "twinkle/kernels/simd/simd.h"
#include "twinkle/kernels/softmax.h"

namespace twinkle::kernels {

RowStats softmax_stats(const at::Tensor& logits, int64_t row, int32_t id, float temperature,
                       bool entropy) {
  return with_type(logits, "softmax's logits", [&]<class T>(T) {
    const int64_t vocab = logits.size(1);
    return best_simd().loops<T>().softmax_stats(logits.const_data_ptr<T>() + row * vocab, vocab, id,
                                                temperature, entropy);
  });
}

float softmax_logprob(const at::Tensor& logits, int64_t row, int32_t id, float temperature,
                      const RowStats& stats) {
  return with_type(logits, "softmax's logits", [&]<class T>(T) {
    const T* from = logits.const_data_ptr<T>() + row * logits.size(1);
    return best_simd().loops<T>().softmax_logprob(from, id, temperature, stats);
  });
}

void softmax_grad_(at::Tensor& logits, int64_t row, int32_t id, float temperature,
                   const RowGrad& grad) {
  with_type(logits, "softmax's logits", [&]<class T>(T) {
    const int64_t vocab = logits.size(1);
    best_simd().loops<T>().softmax_grad(logits.mutable_data_ptr<T>() + row * vocab, vocab, id,
                                        temperature, grad);
  });
}

}  // namespace twinkle::kernels
