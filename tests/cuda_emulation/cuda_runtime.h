// The part of CUDA's cuda_runtime.h that kernels/cuda uses, for a CPU: the program
// cuda_emulation_test finds this file in the place of CUDA's and compiles the kernels as C++. The
// threads of a block are fibers of one thread of the process (emulation.cpp). Dynamic shared memory
// alone: a block finds it filled with NaN.
#pragma once
#include <math.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#define __global__
#define __device__
#define __host__
#define __shared__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

template <class T>
T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
T max(T a, T b) {  // as CUDA's: the other one when one is NaN
  return !(b > a) && a == a ? a : b;
}
inline float rsqrt(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }

struct CUstream_st;
using cudaStream_t = CUstream_st*;
enum cudaError_t { cudaSuccess, cudaErrorInvalidValue };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
inline const char* cudaGetErrorString(cudaError_t) { return "refused by the emulation"; }
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel*, cudaFuncAttribute, int) {
  return cudaSuccess;
}

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  void* attrs = nullptr;
  unsigned numAttrs = 0;
};

namespace twinkle::kernels::emulation {

constexpr unsigned kWarp = 32;

// Runs `thread` once for each thread of each block, blocks and threads in an order that is as good
// as any to the kernel. Throws std::logic_error where a GPU would hang or do as it likes: lanes or
// warps that part before a barrier, writes behind the shared memory.
cudaError_t run(const cudaLaunchConfig_t& config, const std::function<void()>& thread);

// Returns when all threads of the block, or of the warp, have come here.
void block_barrier();
void warp_barrier();
// 32 bytes of the given lane of the calling thread's warp, for the exchange under way.
void* exchange_slot(unsigned lane);
void end_exchange();

}  // namespace twinkle::kernels::emulation

template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...), A... args) {
  return twinkle::kernels::emulation::run(*config, [=] { kernel(args...); });
}

inline void __syncthreads() { twinkle::kernels::emulation::block_barrier(); }

template <class T>
T __shfl_xor_sync(unsigned, T value, int lanes) {
  using namespace twinkle::kernels::emulation;
  static_assert(sizeof(T) <= 16);
  const unsigned lane = threadIdx.x % kWarp;
  *static_cast<T*>(exchange_slot(lane)) = value;
  warp_barrier();
  const T other = *static_cast<const T*>(exchange_slot(lane ^ static_cast<unsigned>(lanes)));
  end_exchange();
  return other;
}
