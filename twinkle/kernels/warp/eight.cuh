// Eight bfloat16 at a time: 16 bytes, as much as a thread can load at once.
#pragma once
#include "twinkle/kernels/cuda/device.cuh"
#ifndef __CUDACC__
#include "mma_emulated.h"
#endif

namespace twinkle::kernels::cuda {

// Eight bfloat16, as they lie in memory; word i holds elements 2i (low half) and 2i + 1.
struct alignas(16) Eight {
  uint32_t words[4];
};

__device__ inline Eight load_eight(const __nv_bfloat16* from, bool there) {
  return there ? *reinterpret_cast<const Eight*>(from) : Eight{};
}

__device__ inline uint32_t half_of(const Eight& x, int i) {
  return i % 2 == 0 ? x.words[i / 2] & 0xffffu : x.words[i / 2] >> 16;
}
__device__ inline float value_of(const Eight& x, int i) {
  return __uint_as_float(half_of(x, i) << 16);
}

__device__ inline uint32_t bits_of(__nv_bfloat16 x) { return *reinterpret_cast<uint16_t*>(&x); }

// value(i) of each of the eight, rounded.
template <class Value>
__device__ Eight eight_of(const Value& value) {
  Eight out;
  for (int i = 0; i < 8; i += 2) {
    out.words[i / 2] =
        bits_of(__float2bfloat16_rn(value(i))) | bits_of(__float2bfloat16_rn(value(i + 1))) << 16;
  }
  return out;
}

// Copies to shared memory that go on while the thread does: zeros where `there` is false. They have
// arrived after wait_for_copies() and a barrier; those of the last `kOpen` commit_copies() may not.
#ifdef __CUDACC__
__device__ inline void copy_async(Eight* to, const Eight* from, bool there) {
  const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kOpen>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kOpen) : "memory");
}
#else
inline void copy_async(Eight* to, const Eight* from, bool there) { *to = there ? *from : Eight{}; }
inline void commit_copies() {}
template <int kOpen>
void wait_for_copies() {}
#endif

inline bool in_eights(Type type, int64_t width) { return type == Type::kBf16 && width % 8 == 0; }

}  // namespace twinkle::kernels::cuda
