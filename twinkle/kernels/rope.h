// Rotary position embedding: pairs of dims of a head turn by one angle each. Over tensors, no
// autograd; bf16 and float32 are computed in float32, float64 in float64. A token's bits depend on
// it alone. Error kInvalid of each: shapes that do not fit, a position outside the table.
#pragma once
#include <ATen/core/Tensor.h>

#include "twinkle/kernels/simd/simd.h"

namespace twinkle::kernels {

enum class Turn {
  kForward,
  kBackward
};  // kBackward is the inverse, which is also the derivative's transpose

// The dims of pair i of rotary_dim / 2.
enum class Pairs {
  kHalves,     // i and i + rotary_dim / 2
  kNeighbours  // 2i and 2i + 1
};

// Rotates x [T, heads, head_dim] by the angles of position_ids [T] (int32 or int64) in cos and sin
// [positions, rotary_dim / 2] float32, in place; dims from rotary_dim on stay. x must be
// contiguous. If x and the ids are on a device, the ids are not checked: the caller guarantees that
// they are in the table.
void rope_(at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
           const at::Tensor& position_ids, Turn turn, Pairs pairs = Pairs::kHalves,
           const Simd& simd = best_simd());

// The same, into a new tensor.
at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                const at::Tensor& position_ids, Turn turn, Pairs pairs = Pairs::kHalves,
                const Simd& simd = best_simd());

}  // namespace twinkle::kernels
