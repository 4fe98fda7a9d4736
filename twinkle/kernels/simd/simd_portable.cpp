// The loops for every other processor: 16-byte vectors, as the compiler lowers them.
#include "twinkle/kernels/simd/simd_sets.h"

#define TWINKLE_ISA portable
#define TWINKLE_VECTOR_BYTES 16
#include "twinkle/kernels/simd/simd_table.h"
