// One table of loops per instruction set, each defined by the simd_*.cpp file of its name.
#pragma once
#include "twinkle/kernels/simd/simd.h"

namespace twinkle::kernels {
namespace avx512bf16 {
const Simd& simd();
}
namespace avx512 {
const Simd& simd();
}
namespace avx2 {
const Simd& simd();
}
namespace portable {
const Simd& simd();
}
}  // namespace twinkle::kernels
