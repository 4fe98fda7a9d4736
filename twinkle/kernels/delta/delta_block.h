// Operands of the inner loops of the gated delta rule and of what stands around it. Pointers only;
// the op that fills them owns the tensors. Internal to this folder.
#pragma once
#include <cstdint>

#include "twinkle/kernels/simd/wide.h"

namespace twinkle::kernels {

// Positions of a sequence that are computed against one S: chunks begin at multiples of it.
inline constexpr int64_t kDeltaChunk = 64;
inline constexpr int64_t kConvTaps = 4;

// Elements of a row that vectors are loaded from.
inline int64_t padded(int64_t width) { return (width + 15) / 16 * 16; }

// Consecutive positions of one sequence, for one key head and the `group` value heads that it
// serves.
template <class T>
struct DeltaBlock {
  using A = Wide<T>;
  int64_t group = 1, key_dim = 0, value_dim = 0;
  int64_t first = 0, count = 0;  // positions [first, first + count)
  // Rows of position `first`, `stride` elements from one to the next.
  const T* q = nullptr;  // [key_dim], not yet normed
  const T* k = nullptr;  // [key_dim], not yet normed
  const T* v = nullptr;  // [group][value_dim]
  int64_t stride = 0;
  const A* decay = nullptr;  // [group], at most 0: the log of what S keeps
  const A* beta = nullptr;   // [group]
  int64_t gate_stride = 0;
  T* out = nullptr;  // [group][value_dim]
  int64_t out_stride = 0;
  // S at the begin of the chunk that holds `first` (not read in the sequence's first), behind the
  // call of the one that holds first + count. [group][key_dim][padded(value_dim)].
  A* s = nullptr;
  // For the chunk's positions so far:
  A* k_columns = nullptr;    // [key_dim][kDeltaChunk], normed
  A* u = nullptr;            // [group][kDeltaChunk][padded(value_dim)]
  double* decays = nullptr;  // [group][kDeltaChunk]: sums of decay from the chunk's begin on
  // S at the begin of each chunk from the second on, in place of `s`; a sequence's whole.
  A* kept = nullptr;
  int64_t kept_stride = 0;  // elements from one chunk to the next
};

// The backward pass of one whole sequence; first is 0, `kept` what the forward has left there.
template <class T>
struct DeltaGradBlock {
  using A = Wide<T>;
  DeltaBlock<T> forward;
  const T* grad = nullptr;  // as forward.out
  T* dq = nullptr;          // as forward.q, and so on
  T* dk = nullptr;
  T* dv = nullptr;
  A* ddecay = nullptr;
  A* dbeta = nullptr;
};

// Elements of scratch, 64-byte aligned.
inline int64_t delta_scratch(int64_t key_dim, int64_t value_dim) {
  const int64_t rows = 2 * kDeltaChunk;
  return rows * (padded(key_dim) + padded(value_dim) + kDeltaChunk) + 2 * padded(value_dim) +
         2 * kDeltaChunk + key_dim * kDeltaChunk;
}
inline int64_t delta_grad_scratch(int64_t key_dim, int64_t value_dim, int64_t group) {
  const int64_t rows = 2 * kDeltaChunk, dk = padded(key_dim), dv = padded(value_dim);
  return delta_scratch(key_dim, value_dim) + key_dim * kDeltaChunk + 3 * kDeltaChunk * dv +
         rows * (2 * dv + 2 * dk) + 5 * kDeltaChunk * kDeltaChunk + dv * kDeltaChunk + dv * dk +
         (group + 1) * key_dim * dv;
}

// Some channels of consecutive rows of one sequence.
template <class T>
struct ConvBlock {
  using A = Wide<T>;
  const T* x = nullptr;  // [count][stride]
  int64_t stride = 0;    // elements: the number of channels
  int64_t count = 0;
  int64_t begin = 0, end = 0;  // channels
  const A* weight = nullptr;   // [kConvTaps][stride]
  T* past = nullptr;  // [kConvTaps - 1][stride]: the last inputs, on return those of the next call;
                      // null: none before, none kept
  bool from_start = true;  // there is nothing before: `past` is not read
  T* out = nullptr;        // [count][stride]
};

template <class T>
struct ConvGradBlock {
  using A = Wide<T>;
  const T* x = nullptr;  // a whole sequence's, and all as in ConvBlock
  int64_t stride = 0, count = 0, begin = 0, end = 0;
  const A* weight = nullptr;
  const T* grad = nullptr;
  T* dx = nullptr;
  A* dweight = nullptr;  // [stride][kConvTaps]: the sum over the rows is added; null: not wanted
};

// Rows of the gated norm and of its derivatives: all [rows][width].
template <class T>
struct GatedNormRows {
  using A = Wide<T>;
  const T *x = nullptr, *gate = nullptr;
  const A* weight = nullptr;  // [width]
  int64_t rows = 0, width = 0;
  A eps = 0;
  T* out = nullptr;
  const T* grad = nullptr;
  T *dx = nullptr, *dgate = nullptr;
};

}  // namespace twinkle::kernels
