// Tensor cores of 16 x 8 x 16 bfloat16 with float32 sums (PTX's mma.sync, m16n8k16), one warp each,
// and how lanes hold their operands: with g = lane / 4 and t = lane % 4, a lane has of A [16, 16]
// rows g and g + 8, of B [16, 8] column g, and of C [16, 8] rows g and g + 8 in columns 2t, 2t + 1.
// Its places along the shared side are 2t, 2t + 1, 2t + 8, 2t + 9. Since a sum may take its terms
// in any order that both operands have, kernels give those places to elements that lie together in
// memory and load 16 bytes at a time; the order is fixed by the place in memory, never by the
// batch.
#pragma once
#include "twinkle/kernels/warp/eight.cuh"

namespace twinkle::kernels::cuda {

// Element i of both, as one operand's word: a in the low half.
__device__ inline uint32_t pair_of(const Eight& a, const Eight& b, int i) {
  return __byte_perm(a.words[i / 2], b.words[i / 2], i % 2 == 0 ? 0x5410 : 0x7632);
}

// float32 values as the sum of three bfloat16, which have all bits of their mantissa.
struct Split {
  uint32_t words[3][4];
  // Word `word` of an operand, which holds a and b.
  __device__ void put(int word, float a, float b) {
    for (auto& term : words) {
      const __nv_bfloat16 of_a = __float2bfloat16_rn(a), of_b = __float2bfloat16_rn(b);
      term[word] = bits_of(of_a) | bits_of(of_b) << 16;
      a -= __bfloat162float(of_a), b -= __bfloat162float(of_b);
    }
  }
};

// c += a b. All lanes of a warp together.
#ifdef __CUDACC__
__device__ inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#else
inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulation::multiply_add(c, a, b0, b1);
}
#endif

__device__ inline void multiply_add(float (&c)[4], const Split& a, uint32_t b0, uint32_t b1) {
  for (const auto& term : a.words) multiply_add(c, term, b0, b1);
}

}  // namespace twinkle::kernels::cuda
