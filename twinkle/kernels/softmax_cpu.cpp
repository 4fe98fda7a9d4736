#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "twinkle/base/error.h"
#include "twinkle/kernels/simd/vec.h"
#include "twinkle/kernels/softmax.h"

namespace twinkle::kernels {
namespace {

// e^x for x <= 0, 16 at a time: 2^n * p(r) with Cody-Waite reduction and the degree-6 minimax
// polynomial of Cephes' expf (Moshier 1992); relative error below 2e-7, 0 below -87.
TWINKLE_INLINE void exp_nonpositive(const F16& in, F16& out) {
  typedef int32_t I16 __attribute__((vector_size(64)));
  const F16 low = F16{} - 87.0f;
  const auto alive = (I16)(in > low);
  const F16 x = alive ? in : low;
  const F16 n_float = x * 1.44269504088896341f - 0.5f;
  const I16 n =
      __builtin_convertvector(n_float, I16);  // truncation: nearest for negative arguments
  const F16 nf = __builtin_convertvector(n, F16);
  F16 r = x - nf * 0.693359375f;
  r = r - nf * -2.12194440e-4f;
  F16 p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const I16 power = (n + 127) << 23;
  F16 scale;
  std::memcpy(&scale, &power, 64);
  const F16 zero{};
  out = alive ? p * scale : zero;
}

TWINKLE_INLINE float sum_lanes(const F16& v) {
  float lanes[16], total = 0;
  std::memcpy(lanes, &v, 64);
  for (float lane : lanes) total += lane;
  return total;
}

template <class T>
TWINKLE_INLINE RowStats stats_of(const T* row, int64_t vocab, int64_t id, float temperature,
                                 bool entropy) {
  const float inverse = 1.0f / temperature;
  float top = -std::numeric_limits<float>::infinity();
  F16 tops = F16{} + top;
  int64_t i = 0;
  for (; i + 16 <= vocab; i += 16) {
    F16 v;
    load(row + i, v);
    tops = tops > v ? tops : (v == v ? v : tops);  // a NaN shows in the sum below
  }
  for (; i < vocab; ++i) top = std::max(top, static_cast<float>(row[i]));
  float lanes[16];
  std::memcpy(lanes, &tops, 64);
  for (float lane : lanes) top = std::max(top, lane);
  top *= inverse;
  F16 sums{}, weighted{};
  for (i = 0; i + 16 <= vocab; i += 16) {
    F16 v;
    load(row + i, v);
    const F16 shifted = v * inverse - top;
    F16 e;
    exp_nonpositive(shifted, e);
    sums += shifted == shifted ? e : shifted;
    if (entropy) weighted += e * shifted;
  }
  float sum = sum_lanes(sums), dot = sum_lanes(weighted);
  for (; i < vocab; ++i) {
    const float shifted = static_cast<float>(row[i]) * inverse - top, e = std::exp(shifted);
    sum += e;
    if (entropy) dot += e * shifted;
  }
  RowStats out;
  const float log_sum = std::log(sum);
  out.top = top;
  out.sum = sum;
  out.logprob = (static_cast<float>(row[id]) * inverse - top) - log_sum;
  if (entropy) out.entropy = log_sum - dot / sum;
  return out;
}

template <class T>
TWINKLE_INLINE float logprob_of(const T* row, int64_t id, float temperature,
                                const RowStats& stats) {
  const float inverse = 1.0f / temperature, top = static_cast<float>(stats.top);
  const float log_sum = std::log(static_cast<float>(stats.sum));
  return (static_cast<float>(row[id]) * inverse - top) - log_sum;
}

template <class T>
TWINKLE_INLINE void grad_of(T* row, int64_t vocab, int64_t id, float temperature,
                            const RowStats& stats, float grad) {
  const float inverse = 1.0f / temperature, top = static_cast<float>(stats.top);
  const float scale = static_cast<float>(-grad * inverse / stats.sum);
  const float at_id =
      grad * inverse + scale * std::exp(static_cast<float>(row[id]) * inverse - top);
  int64_t i = 0;
  for (; i + 16 <= vocab; i += 16) {
    F16 v, e;
    load(row + i, v);
    exp_nonpositive(v * inverse - top, e);
    store(row + i, e * scale);
  }
  for (; i < vocab; ++i) {
    row[i] = static_cast<T>(std::exp(static_cast<float>(row[i]) * inverse - top) * scale);
  }
  row[id] = static_cast<T>(at_id);
}

TWINKLE_CLONES RowStats stats(const c10::BFloat16* row, int64_t vocab, int64_t id,
                              float temperature, bool entropy) {
  return stats_of(row, vocab, id, temperature, entropy);
}
TWINKLE_CLONES RowStats stats(const float* row, int64_t vocab, int64_t id, float temperature,
                              bool entropy) {
  return stats_of(row, vocab, id, temperature, entropy);
}
TWINKLE_CLONES float logprob(const c10::BFloat16* row, int64_t id, float t, const RowStats& stats) {
  return logprob_of(row, id, t, stats);
}
TWINKLE_CLONES float logprob(const float* row, int64_t id, float t, const RowStats& stats) {
  return logprob_of(row, id, t, stats);
}
TWINKLE_CLONES void grads(c10::BFloat16* row, int64_t vocab, int64_t id, float t,
                          const RowStats& stats, float grad) {
  grad_of(row, vocab, id, t, stats, grad);
}
TWINKLE_CLONES void grads(float* row, int64_t vocab, int64_t id, float t, const RowStats& stats,
                          float grad) {
  grad_of(row, vocab, id, t, stats, grad);
}

// float64, for gradient checks: plain loops.
RowStats stats(const double* row, int64_t vocab, int64_t id, float temperature, bool entropy) {
  double top = -std::numeric_limits<double>::infinity(), sum = 0, dot = 0;
  for (int64_t i = 0; i < vocab; ++i) top = std::max(top, row[i] / temperature);
  for (int64_t i = 0; i < vocab; ++i) {
    const double shifted = row[i] / temperature - top, e = std::exp(shifted);
    sum += e;
    dot += e * shifted;
  }
  RowStats out;
  out.logprob = static_cast<float>(row[id] / temperature - top - std::log(sum));
  if (entropy) out.entropy = static_cast<float>(std::log(sum) - dot / sum);
  out.top = top;
  out.sum = sum;
  return out;
}
float logprob(const double* row, int64_t id, float t, const RowStats& stats) {
  return static_cast<float>(row[id] / t - stats.top - std::log(stats.sum));
}
void grads(double* row, int64_t vocab, int64_t id, float t, const RowStats& stats, float grad) {
  for (int64_t i = 0; i < vocab; ++i) {
    row[i] = grad / t * ((i == id ? 1.0 : 0.0) - std::exp(row[i] / t - stats.top) / stats.sum);
  }
}

template <class F>
auto dispatch(at::ScalarType type, F&& run) {
  if (type == at::kBFloat16) return run(c10::BFloat16{});
  if (type == at::kDouble) return run(0.0);
  require(type == at::kFloat, Code::kInvalid,
          "kernels: softmax takes bfloat16, float32 or float64, not ", c10::toString(type));
  return run(0.0f);
}

}  // namespace

RowStats softmax_stats(const at::Tensor& logits, int64_t row, int32_t id, float temperature,
                       bool entropy) {
  return dispatch(logits.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const int64_t vocab = logits.size(1);
    return stats(logits.const_data_ptr<T>() + row * vocab, vocab, id, temperature, entropy);
  });
}

float softmax_logprob(const at::Tensor& logits, int64_t row, int32_t id, float temperature,
                      const RowStats& stats) {
  return dispatch(logits.scalar_type(), [&](auto type) {
    using T = decltype(type);
    return logprob(logits.const_data_ptr<T>() + row * logits.size(1), id, temperature, stats);
  });
}

void softmax_grad_(at::Tensor& logits, int64_t row, int32_t id, float temperature,
                   const RowStats& stats, float grad) {
  dispatch(logits.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const int64_t vocab = logits.size(1);
    grads(logits.mutable_data_ptr<T>() + row * vocab, vocab, id, temperature, stats, grad);
  });
}

}  // namespace twinkle::kernels
