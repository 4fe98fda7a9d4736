#include "twinkle/kernels/cuda/cuda.h"
#include "twinkle/kernels/simd/dispatch.h"
#include "twinkle/kernels/simd/simd.h"
#include "twinkle/kernels/simd/team.h"
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

double softmax_logprob(const at::Tensor& logits, int64_t row, int32_t id, float temperature,
                       const RowStats& stats) {
  return with_type(logits, "softmax's logits", [&]<class T>(T) -> double {
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

void softmax_stats(const at::Tensor& logits, std::span<const int32_t> ids,
                   std::span<const float> temperature, bool entropy, std::span<RowStats> stats) {
  if (cuda::takes(logits)) return cuda::softmax_stats(logits, ids, temperature, stats);
  parallel_for(0, logits.size(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float t = temperature.empty() ? 1.0f : temperature[r];
      stats[r] = softmax_stats(logits, r, ids[r], t, entropy);
    }
  });
}

void softmax_grad_(at::Tensor& logits, std::span<const int32_t> ids,
                   std::span<const float> temperature, std::span<const RowStats> stats,
                   std::span<const float> grad, std::span<const float> entropy_grad) {
  if (cuda::takes(logits))
    return cuda::softmax_grad_(logits, ids, temperature, stats, grad, entropy_grad);
  parallel_for(0, logits.size(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float t = temperature.empty() ? 1.0f : temperature[r];
      const float of_entropy = entropy_grad.empty() ? 0.0f : entropy_grad[r];
      softmax_grad_(logits, r, ids[r], t, {stats[r], grad[r], of_entropy});
    }
  });
}

}  // namespace twinkle::kernels
