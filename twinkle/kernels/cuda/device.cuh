// What every .cu file of this folder shares: element types, a sum over a block in a fixed order,
// the check after a launch. Internal to this folder.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "twinkle/base/error.h"
#include "twinkle/kernels/cuda/launch.h"

namespace twinkle::kernels::cuda {

constexpr int kThreads = 256;  // of a block; a multiple of the warp

template <class T>
struct WideOf {
  using type = float;
};
template <>
struct WideOf<double> {
  using type = double;
};
template <class T>
using Wide = typename WideOf<T>::type;

__device__ inline float wide(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float wide(float x) { return x; }
__device__ inline double wide(double x) { return x; }
template <class T>
__device__ T narrow(Wide<T> x) {
  return static_cast<T>(x);
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// combine() over the block's threads, the same value in all: within a warp by a butterfly, then
// over the warps in order. Ends with a barrier, so it may be called again at once.
template <class A, class Combine>
__device__ A over_block(A value, A empty, const Combine& combine) {
  __shared__ A of_warp[kThreads / 32];
  for (int lane = 16; lane > 0; lane /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, lane));
  }
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  A total = empty;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) total = combine(total, of_warp[w]);
  __syncthreads();
  return total;
}

template <class A>
__device__ A block_sum(A value) {
  return over_block(value, A(0), [](A a, A b) { return a + b; });
}

inline void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  require(error == cudaSuccess, Code::kInternal, "kernels: ", kernel,
          " did not start: ", cudaGetErrorString(error));
}

// body(T{}) with T __nv_bfloat16, float or double.
template <class Body>
void with_type(Type type, const Body& body) {
  switch (type) {
    case Type::kBf16:
      return body(__nv_bfloat16{});
    case Type::kFloat:
      return body(float{});
    case Type::kDouble:
      return body(double{});
  }
}

inline unsigned blocks_for(int64_t count, int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

}  // namespace twinkle::kernels::cuda
