// The loops for processors with AVX2 and FMA; see simd_avx512.cpp for why the includes stand above
// the pragma.
#include "twinkle/kernels/simd/simd_sets.h"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC target("avx2,fma")
#define TWINKLE_ISA avx2
#define TWINKLE_VECTOR_BYTES 32
#include "twinkle/kernels/simd/simd_table.h"
#endif
