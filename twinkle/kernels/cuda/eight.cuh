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

inline bool in_eights(Type type, int64_t width) { return type == Type::kBf16 && width % 8 == 0; }

}  // namespace twinkle::kernels::cuda
