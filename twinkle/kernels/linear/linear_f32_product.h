// What the loop of linear_f32_thin works on. Pointers only; the op owns the tensors. Internal to
// this folder and to kernels/simd, but for the constant.
#pragma once
#include <cstdint>

namespace twinkle::kernels {

inline constexpr int64_t kThinRows = 8;  // that one pass over the weights serves

struct ThinProduct {
  const float* x;     // [rows][inputs]
  const float* w;     // [outputs][inputs]
  const float* bias;  // [outputs] or null
  float* y;           // [rows][outputs]
  int64_t rows, outputs, inputs;
  int64_t run;
};

}  // namespace twinkle::kernels
