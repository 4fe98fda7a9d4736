// Shared by all .cu files: element types, a sum over a block in a fixed order, the launch. Kernels
// keep to what tests/cuda_emulation has of CUDA: blocks of one dimension, dynamic shared memory,
// __syncthreads, __shfl_xor_sync by whole warps, no atomics. Internal to kernels/.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "twinkle/base/error.h"
#include "twinkle/kernels/cuda/launch.h"

namespace twinkle::kernels::cuda {

constexpr int kThreads = 256;  // for a block; a multiple of the warp
constexpr int kWarps = kThreads / 32;

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

// The block's shared memory, as many bytes as its Grid says.
template <class A>
__device__ A* shared() {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  return reinterpret_cast<A*>(shared_bytes);
}

// combine() over the lanes of the calling warp, the same value in all of them.
template <class A, class Combine>
__device__ A over_warp(A value, const Combine& combine) {
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, lanes));
  }
  return value;
}

// combine() over the block's threads, the same value in all: within a warp by a butterfly, then
// over the warps in order. Takes the first kWarps elements of the shared memory. Ends with a
// barrier, so it may be called again at once.
template <class A, class Combine>
__device__ A over_block(A value, A empty, const Combine& combine) {
  A* of_warp = shared<A>();
  value = over_warp(value, combine);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  A total = empty;
  for (int w = 0; w < kWarps; ++w) total = combine(total, of_warp[w]);
  __syncthreads();
  return total;
}

template <class A>
__device__ A block_sum(A value) {
  return over_block(value, A(0), [](A a, A b) { return a + b; });
}

// Blocks, each with so many bytes of shared memory (for over_block alone unless it says more) and
// threads.
struct Grid {
  int64_t x = 1, y = 1, z = 1;
  size_t shared = kWarps * sizeof(double);
  unsigned threads = kThreads;
};

// Blocks of a thread per element.
inline Grid grid_for(int64_t count) { return {.x = (count + kThreads - 1) / kThreads}; }

// Queues the kernel, unless the grid is empty. `name` is for the error.
template <class... P, class... A>
void launch(const char* name, const Grid& grid, Stream stream, void (*kernel)(P...),
            const A&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  require(grid.x <= 0x7fffffff && grid.y <= 0xffff && grid.z <= 0xffff, Code::kInvalid,
          "kernels: ", name, " takes ", grid.x, " x ", grid.y, " x ", grid.z,
          " blocks, at most 2^31 - 1 x 65,535 x 65,535 can be: give it less at a time");
  cudaLaunchConfig_t config{};
  config.gridDim = {static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                    static_cast<unsigned>(grid.z)};
  config.blockDim = {grid.threads, 1, 1};
  config.dynamicSmemBytes = grid.shared;
  config.stream = stream;
  cudaError_t error = cudaSuccess;
  constexpr size_t kWithoutAsking = 48 << 10;
  if (grid.shared > kWithoutAsking) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(grid.shared));
  }
  if (error == cudaSuccess) {
    error = cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...);
  }
  require(error == cudaSuccess, Code::kInternal, "kernels: ", name,
          " did not start: ", cudaGetErrorString(error));
}

// Rows of a table share out the blocks of a launch: the one that block `block` is for.
// `first_block` of a row counts the blocks of those before; rows without blocks are passed over.
template <class Row>
__device__ const Row& row_of_block(const Row* rows, int64_t num_rows, int64_t block) {
  int64_t low = 0, high = num_rows;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (rows[middle].first_block <= block ? low : high) = middle;
  }
  return rows[low];
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

}  // namespace twinkle::kernels::cuda
