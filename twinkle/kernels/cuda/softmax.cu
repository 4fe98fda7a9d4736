// One block a row of logits: the largest, then the sum of exp and the entropy's dot product, each
// over the block in a fixed order.
#include <cmath>

#include "twinkle/kernels/warp/eight.cuh"

namespace twinkle::kernels::cuda {
namespace {

// body(i, logit) of the thread's elements of a row; of bfloat16 eight that lie together at a time,
// where every row begins at a multiple of 16 bytes.
template <class T, class Body>
__device__ void each_of(const T* row, int64_t vocab, const Body& body) {
  if constexpr (sizeof(T) == 2) {
    if (vocab % 8 == 0) {
      for (int64_t i = threadIdx.x * 8; i < vocab; i += blockDim.x * 8) {
        const Eight some = load_eight(row + i, true);
        for (int e = 0; e < 8; ++e) body(i + e, value_of(some, e));
      }
      return;
    }
  }
  for (int64_t i = threadIdx.x; i < vocab; i += blockDim.x) body(i, wide(row[i]));
}

template <class T>
__global__ void row_stats(const T* logits, const int32_t* ids, const float* temperature,
                          int64_t vocab, Wide<T>* stats) {
  using A = Wide<T>;
  const T* row = logits + int64_t{blockIdx.x} * vocab;
  const A inverse = A(1) / (temperature != nullptr ? A(temperature[blockIdx.x]) : A(1));
  A top = -INFINITY;
  each_of(row, vocab, [&](int64_t, A logit) { top = max(top, logit * inverse); });
  top = over_block(top, A(-INFINITY), [](A a, A b) { return max(a, b); });
  A sum = 0, dot = 0;  // a NaN is no maximum, but shows here
  each_of(row, vocab, [&](int64_t, A logit) {
    const A shifted = logit * inverse - top, e = exp(shifted);
    sum += e;
    dot += e > 0 ? e * shifted : e;
  });
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
  const auto grad_of = [&](int64_t i, A logit) {
    const A shifted = logit * inverse - top, p = exp(shifted) / sum;
    A grad = scale * ((i == id ? A(1) : A(0)) - p);
    if (entropy_scale != 0 && p > 0) grad -= entropy_scale * p * (shifted + shift);
    return grad;
  };
  if constexpr (sizeof(T) == 2) {
    if (vocab % 8 == 0) {
      for (int64_t i = threadIdx.x * 8; i < vocab; i += blockDim.x * 8) {
        const Eight some = load_eight(row + i, true);
        *reinterpret_cast<Eight*>(row + i) =
            eight_of([&](int e) { return grad_of(i + e, value_of(some, e)); });
      }
      return;
    }
  }
  for (int64_t i = threadIdx.x; i < vocab; i += blockDim.x) {
    row[i] = narrow<T>(grad_of(i, wide(row[i])));
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
