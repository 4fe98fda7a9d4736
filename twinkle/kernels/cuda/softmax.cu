// One block a row of logits: the largest, then the sum of exp and the entropy's dot product, each
// over the block in a fixed order.
#include <cmath>

#include "twinkle/kernels/cuda/device.cuh"

namespace twinkle::kernels::cuda {
namespace {

template <class T>
__global__ void row_stats(const T* logits, const int32_t* ids, const float* temperature,
                          int64_t vocab, Wide<T>* stats) {
  using A = Wide<T>;
  const T* row = logits + int64_t{blockIdx.x} * vocab;
  const A inverse = A(1) / (temperature != nullptr ? A(temperature[blockIdx.x]) : A(1));
  A top = -INFINITY;
  for (int64_t i = threadIdx.x; i < vocab; i += blockDim.x) top = max(top, wide(row[i]) * inverse);
  top = over_block(top, A(-INFINITY), [](A a, A b) { return max(a, b); });
  A sum = 0, dot = 0;  // a NaN is no maximum, but shows here
  for (int64_t i = threadIdx.x; i < vocab; i += blockDim.x) {
    const A shifted = wide(row[i]) * inverse - top, e = exp(shifted);
    sum += e;
    dot += e > 0 ? e * shifted : e;
  }
  sum = block_sum(sum);
  dot = block_sum(dot);
  if (threadIdx.x != 0) return;
  A* out = stats + int64_t{blockIdx.x} * 4;
  out[0] = wide(row[ids[blockIdx.x]]) * inverse - top - log(sum);
  out[1] = log(sum) - dot / sum;
  out[2] = top;
  out[3] = sum;
}

template <class T>
__global__ void row_grad(T* logits, const int32_t* ids, const float* temperature, int64_t vocab,
                         const Wide<T>* stats, LogitGrads grads) {
  using A = Wide<T>;
  T* row = logits + int64_t{blockIdx.x} * vocab;
  const A inverse = A(1) / (temperature != nullptr ? A(temperature[blockIdx.x]) : A(1));
  const A* known = stats + int64_t{blockIdx.x} * 4;
  const A top = known[2], sum = known[3], shift = known[1] - log(sum);
  const A scale = A(grads.logprob[blockIdx.x]) * inverse;
  const A entropy_scale = grads.entropy != nullptr ? A(grads.entropy[blockIdx.x]) * inverse : A(0);
  const int32_t id = ids[blockIdx.x];
  for (int64_t i = threadIdx.x; i < vocab; i += blockDim.x) {
    const A shifted = wide(row[i]) * inverse - top, p = exp(shifted) / sum;
    A grad = scale * ((i == id ? A(1) : A(0)) - p);
    if (entropy_scale != 0 && p > 0) grad -= entropy_scale * p * (shifted + shift);
    row[i] = narrow<T>(grad);
  }
}

}  // namespace

void softmax_stats(Type type, const LogitRows& in, void* stats, Stream stream) {
  with_type(type, [&]<class T>(T) {
    launch("softmax_stats", {.x = in.rows}, stream, row_stats<T>, static_cast<const T*>(in.logits),
           in.ids, in.temperature, in.vocab, static_cast<Wide<T>*>(stats));
  });
}

void softmax_grad(Type type, const LogitRows& in, const void* stats, const LogitGrads& grads,
                  Stream stream) {
  with_type(type, [&]<class T>(T) {
    launch("softmax_grad", {.x = in.rows}, stream, row_grad<T>, static_cast<T*>(in.logits), in.ids,
           in.temperature, in.vocab, static_cast<const Wide<T>*>(stats), grads);
  });
}

}  // namespace twinkle::kernels::cuda
