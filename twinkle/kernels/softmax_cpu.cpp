#include "twinkle/kernels/cuda/cuda.h"
#include "twinkle/kernels/simd/dispatch.h"
#include "twinkle/kernels/simd/simd.h"
#include "twinkle/kernels/simd/team.h"
#include "twinkle/kernels/softmax.h"

namespace twinkle::kernels {
namespace {

constexpr int64_t kCapGrain = 4096;  // elements

void check_cap(const at::Tensor& x, const char* name, double cap) {
  require(x.is_cpu() && x.is_contiguous(), Code::kInvalid, "kernels: softcap's ", name, " on ",
          x.device(), " must be contiguous, and it runs on the CPU only");
  require(cap > 0, Code::kInvalid, "kernels: softcap is ", cap, ", it must be above 0");
}

}  // namespace

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

void softcap_(at::Tensor& logits, double cap, const Simd& simd) {
  check_cap(logits, "logits", cap);
  with_type(logits, "softcap's logits", [&]<class T>(T) {
    T* x = logits.mutable_data_ptr<T>();
    parallel_for(0, logits.numel(), kCapGrain, [&](int64_t begin, int64_t end) {
      simd.loops<T>().softcap(x + begin, end - begin, static_cast<Wide<T>>(cap));
    });
  });
}

void softcap_grad_(at::Tensor& grad, const at::Tensor& capped, double cap, const Simd& simd) {
  check_cap(grad, "gradient", cap);
  check_cap(capped, "logits", cap);
  require_like(capped, "softcap's logits", grad, "their gradient");
  with_type(grad, "softcap's gradient", [&]<class T>(T) {
    T* x = grad.mutable_data_ptr<T>();
    const T* y = capped.const_data_ptr<T>();
    parallel_for(0, grad.numel(), kCapGrain, [&](int64_t begin, int64_t end) {
      simd.loops<T>().softcap_grad(x + begin, y + begin, end - begin, static_cast<Wide<T>>(cap));
    });
  });
}

}  // namespace twinkle::kernels
