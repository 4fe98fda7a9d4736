// Operands of attention's inner loops: a block of query rows against the keys of one sequence and
// one key head. Pointers only; the op that fills them owns the tensors. Internal to this folder.
#pragma once
#include <cstdint>

#include "twinkle/kernels/simd/wide.h"

namespace twinkle::kernels {

// Keys are worked through in tiles of this many, counted from the sequence's position 0. Also the
// page size of the paged cache, in tokens.
inline constexpr int64_t kKeyTile = 64;

// Either packed rows (pages is null) or pages of kKeyTile tokens, transposed for keys.
template <class T>
struct KeyTiles {
  // packed: [num_keys][stride]; paged: page 0 of this head, [head_dim][kKeyTile], or null: the
  // values are the keys
  const T* k = nullptr;
  const T* v = nullptr;  // packed: the same; paged: page 0 of this head, [kKeyTile][head_dim]
  int64_t stride = 0;    // elements from one token (paged: one page) to the next
  int64_t num_keys = 0;  // packed only
  const int32_t* pages = nullptr;  // page of each tile of the sequence
};

struct AttentionShape {
  int64_t group = 1;     // query heads of the key head, adjacent in memory
  int64_t head_dim = 0;  // elements
  double scale = 1;
  int64_t window = 0;  // tokens; 0: all
  double softcap = 0;  // cap of scaled scores; 0: none

  int64_t padded_dim() const { return (head_dim + 15) / 16 * 16; }
};

template <class T>
struct AttentionBlock {
  AttentionShape shape;
  KeyTiles<T> keys;
  const T* q = nullptr;                // [num_positions][q_stride], `group` heads at each
  int64_t q_stride = 0;                // elements
  int64_t num_positions = 0;           // at most block_positions(group)
  const int64_t* positions = nullptr;  // positions of the queries in their sequence
  T* out = nullptr;                    // laid out as q
  Wide<T>* lse = nullptr;              // [num_positions][lse_stride]; null: not wanted
  int64_t lse_stride = 0;
  const Wide<T>* sinks = nullptr;  // [group]; null: none
};

// The backward pass of one whole sequence and key head. Null gradients are not computed.
template <class T>
struct AttentionGradBlock {
  AttentionShape shape;
  KeyTiles<T> keys;  // packed
  const T* q = nullptr;
  const T* out = nullptr;       // all laid out as q: [num_keys][q_stride]
  const T* grad_out = nullptr;  //
  int64_t q_stride = 0;         // elements
  const Wide<T>* lse = nullptr;
  int64_t lse_stride = 0;
  T* dq = nullptr;  // as q
  T* dk = nullptr;  // as keys.k
  T* dv = nullptr;
};

// About this many query rows (positions x group) share one conversion of a key tile.
inline constexpr int64_t kBlockRows = 96;
inline int64_t block_positions(int64_t group) {
  return group >= kBlockRows ? 1 : (kBlockRows / group > kKeyTile ? kKeyTile : kBlockRows / group);
}

// Elements of scratch that the loops need, 64-byte aligned.
inline int64_t forward_scratch(const AttentionShape& shape) {
  const int64_t rows = block_positions(shape.group) * shape.group, dim = shape.padded_dim();
  return rows * (2 * dim + 16 + 16) + 2 * kKeyTile * dim;
}
inline int64_t backward_scratch(const AttentionShape& shape, int64_t num_keys) {
  const int64_t rows = block_positions(shape.group) * shape.group, dim = shape.padded_dim();
  return 2 * num_keys * dim + rows * (3 * dim + 2 * kKeyTile + 32) + 3 * kKeyTile * dim;
}

}  // namespace twinkle::kernels
