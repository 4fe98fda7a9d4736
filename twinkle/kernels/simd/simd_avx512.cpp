// The loops for processors with AVX-512 F, BW, DQ and VL. Nothing from the standard library may be
// included below the pragma: the linker could pick its inline functions from here for programs on
// lesser processors.
#include "twinkle/kernels/simd/simd_sets.h"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")
#define TWINKLE_ISA avx512
#define TWINKLE_VECTOR_BYTES 64
#include "twinkle/kernels/simd/simd_table.h"
#endif
