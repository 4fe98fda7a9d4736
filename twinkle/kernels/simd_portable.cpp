// The loops for every other processor: 16-byte vectors, as the compiler lowers them.
#include "twinkle/kernels/simd_sets.h"

#define TWINKLE_ISA portable
#include "twinkle/kernels/simd_table.h"
