// Operands of the loops of linear_f32 and of linear_bf16's runs. Pointers only; the op owns the
// tensors. Internal to this folder and to kernels/simd, but for the constants.
#pragma once
#include <cstdint>

namespace twinkle::kernels {

inline constexpr int64_t kThinRows = 8;   // that one pass over the weights serves
inline constexpr int64_t kSumRun = 128;   // inputs of one chain
inline constexpr int64_t kWideTile = 48;  // outputs: a multiple of every instruction set's tiles

// In a product of more rows, so many rows' inputs of a group of runs stay in the second cache, as
// do their sums of so many outputs.
inline constexpr int64_t kWideRows = 512;
inline constexpr int64_t kWideGroup = 4 * kSumRun;
inline constexpr int64_t kWideOutputs = 6 * kWideTile;

// For one whose rows may be few: the most, the floats of them that each thread transposes for
// itself, and the outputs of which it keeps sums at a time.
inline constexpr int64_t kFewRows = 128;
inline constexpr int64_t kFewFloats = int64_t{1} << 18;
inline constexpr int64_t kFewOutputs = 128;

// T: float, or bfloat16, which is widened where it is read and rounded where it is written.
template <class T>
struct RunProduct {
  const float* x;  // [rows][inputs]
  const T* w;      // [outputs][inputs], or [inputs][outputs] when transposed
  bool transposed;
  const T* bias;  // [outputs] or null
  T* y;           // [rows][outputs]
  int64_t rows, outputs, inputs;
  bool adds = false;  // y += the product, in float

  bool is_thin() const { return rows <= kThinRows && !transposed; }

  // Floats that a thread needs unless it is thin.
  int64_t scratch_size() const {
    const int64_t wide = (rows < kWideRows ? rows : kWideRows) * kWideOutputs;
    const int64_t few = may_be_few() ? packed_size() + kFewRows * kFewOutputs : 0;
    return few > wide ? few : wide;
  }
  bool may_be_few() const { return rows <= kFewRows && packed_size() <= kFewFloats; }
  // Floats of few rows that are transposed.
  int64_t packed_size() const { return (rows + 15) / 16 * 16 * inputs; }
};

}  // namespace twinkle::kernels
