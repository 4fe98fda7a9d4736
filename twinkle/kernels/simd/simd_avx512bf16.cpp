// The loops for processors that also round to bf16 in one instruction; see simd_avx512.cpp for why
// the includes stand above the pragma.
#include "twinkle/kernels/simd/simd_sets.h"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
#define TWINKLE_ISA avx512bf16
#define TWINKLE_VECTOR_BYTES 64
#define TWINKLE_BF16_INSTRUCTIONS
#include "twinkle/kernels/simd/simd_table.h"
#endif
