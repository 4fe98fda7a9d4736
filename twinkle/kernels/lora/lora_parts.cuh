// Shared by the kernels of lora_cuda.cu and lora_mma.cu: a part's factor, its dropout, and the
// choice of the file that takes a product.
#pragma once
#include "twinkle/kernels/warp/eight.cuh"

namespace twinkle::kernels::cuda {

// The stream of lora_loops.h's lora_mask.
__device__ inline uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// The dropout factor of element i of the part's row `token`.
template <class A>
__device__ A mask_of(const LoraRow& part, int64_t token, int64_t i) {
  if (part.key == 0) return A(1);
  const uint64_t row =
      mix(part.key + 0x9e3779b97f4a7c15ull * static_cast<uint64_t>(part.first + token + 1));
  return (mix(row + static_cast<uint64_t>(i)) >> 32) < part.limit ? A(0) : A(part.keep);
}

template <class T>
__device__ const T* factor_of(const LoraRow& part, LoraFactor factor) {
  return static_cast<const T*>(factor == LoraFactor::kA ? part.a : part.b);
}

template <class A>
__device__ A scale_of(const LoraRow& part, LoraFactor factor) {
  return factor == LoraFactor::kA ? A(1) : A(part.scale);
}

// In lora_mma.cu, for a width that is in_eights().
void lora_shrink_mma(const LoraIn& of, float* h, int64_t size, float* parts, Stream stream);
void lora_expand_mma(const LoraIn& of, const float* h, __nv_bfloat16* out, Stream stream);
void lora_outer_mma(const LoraIn& of, const float* h, const LoraGrads& grads, Stream stream);

}  // namespace twinkle::kernels::cuda
