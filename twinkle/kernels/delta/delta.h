// The gated delta rule (Yang et al. 2025, Gated Delta Networks): linear attention whose state of a
// value head, S [dk, dv], loses a share of itself and one value a token. With q and k of unit
// length, q over sqrt(dk), beta = sigmoid(b) and g = -exp(A_log) softplus(a + dt_bias):
//   S <- e^g S;  S <- S + k (beta (v - S' k))';  o = S' q
// Functions over tensors, no autograd; bf16 and float32 are computed in float32, float64 in
// float64. Chunks of 64 positions, counted from the sequence's begin, are computed from the state
// before them, row by row and in one order of sums: a row's bits depend on its own sequence alone,
// however it is cut into calls, and on no thread count. CPU only. Error kInvalid of each: shapes or
// types that do not fit, a tensor on a device. T tokens, K key heads of size dk, H value heads of
// size dv (H a multiple of K; a key head serves H / K neighbours), C = 2 K dk + H dv channels.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "twinkle/kernels/simd/simd.h"

namespace twinkle::kernels {

struct DeltaShape {
  int64_t key_heads = 0, value_heads = 0;
  int64_t key_dim = 0, value_dim = 0;

  int64_t group() const { return value_heads / key_heads; }
  int64_t channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
  int64_t s_size() const {
    return value_heads * key_dim * padded(value_dim);
  }  // floats of one S, padded
};

struct DeltaInputs {
  at::Tensor qkv;             // [T, C]: all heads of q, all of k, all of v
  at::Tensor a, b;            // [T, H]
  at::Tensor a_log, dt_bias;  // [H], of any float type
};

struct DeltaResult {
  at::Tensor out;   // [T, H, dv] of qkv's type
  at::Tensor kept;  // S at the begin of every chunk but each sequence's first; undefined: not asked
};

// Whole sequences, cu_seqlens [S + 1]. `keep`: for delta_backward.
DeltaResult delta(const DeltaInputs& in, const DeltaShape& shape,
                  std::span<const int64_t> cu_seqlens, bool keep, const Simd& simd = best_simd());
// The bytes of what it keeps of a sequence of so many tokens.
int64_t delta_kept_bytes(const DeltaShape& shape, at::ScalarType dtype, int64_t num_tokens);

struct DeltaGrads {
  at::Tensor qkv, a, b;  // as the inputs
  // [T, H] in float32 (float64), the terms of their sums over the tokens:
  at::Tensor a_log, dt_bias;
};
DeltaGrads delta_backward(const at::Tensor& grad, const DeltaInputs& in, const DeltaShape& shape,
                          const at::Tensor& kept, std::span<const int64_t> cu_seqlens,
                          const Simd& simd = best_simd());

// The state that sampling keeps of one sequence, in memory of the caller's, 64-byte aligned and of
// any content before position 0: S and the convolution's last inputs, and, behind those, the
// positions of the chunk that is not closed. At a multiple of 64 positions the first part is all
// there is.
struct DeltaState {
  static int64_t num_bytes(const DeltaShape& shape, at::ScalarType dtype);
  static int64_t closed_bytes(const DeltaShape& shape, at::ScalarType dtype);
  // Where the convolution's inputs are: [3, C] of `dtype`.
  static int64_t conv_offset(const DeltaShape& shape, at::ScalarType dtype);
};

// Positions [first, first + count) of a sequence, rows from `row` on.
struct DeltaRun {
  int64_t row = 0, count = 0, first = 0;
  std::byte* state = nullptr;
};

// Sequences that go on from their states, and change them. [T, H, dv]; rows of no run are zero.
at::Tensor delta_continue(const DeltaInputs& in, const DeltaShape& shape,
                          std::span<const DeltaRun> runs, const Simd& simd = best_simd());

}  // namespace twinkle::kernels
