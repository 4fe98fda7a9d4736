// Operands of lora's inner loops: rows of one sequence, and one factor of its adapter. Pointers
// only; the op that fills them owns the tensors. Internal to kernels/, but for LoraDropout.
#pragma once
#include <cstdint>

#include "twinkle/kernels/simd/wide.h"

namespace twinkle::kernels {

// Dropout on the adapter's input (Srivastava et al. 2014): an element is dropped with probability
// `p`, others are scaled by 1 / (1 - p). The stream is a function of (key, token's index in its
// sequence, input), so it is the same in forward and backward, and in any batch. p = 0 or key = 0:
// none.
struct LoraDropout {
  double p = 0.0;
  uint64_t key = 0;
};

// A factor, and the rows that meet it. Row 0 is token `first` of its sequence.
template <class T>
struct LoraRows {
  int64_t rows = 0, width = 0, rank = 0;
  int64_t first = 0;
  const T* factor = nullptr;  // [rank][width]
  const T* next = nullptr;    // the factor that this thread is likely to read after it; or this one
  Wide<T> scale = 1;
  LoraDropout dropout;
};

// h [rows][rank] := scale * dropout(in) factor^T, with in [rows][width].
template <class T>
struct LoraShrink {
  LoraRows<T> of;
  const T* in = nullptr;
  Wide<T>* h = nullptr;
};

// out [rows][width] += dropout(scale * h factor), with h [rows][rank].
template <class T>
struct LoraExpand {
  LoraRows<T> of;
  const Wide<T>* h = nullptr;
  T* out = nullptr;
};

// Columns of a factor's gradient that are one task.
inline constexpr int64_t kLoraColumns = 64;

// sum [rank][kLoraColumns] += scale * h^T dropout(in), for columns [begin, begin + count) of in.
// The rows are all those of one sequence; their own sum starts from zero. The factor is not read.
template <class T>
struct LoraOuter {
  LoraRows<T> of;
  const Wide<T>* h = nullptr;
  const T* in = nullptr;
  int64_t begin = 0, count = 0;
  Wide<T>* sum = nullptr;
};

// Elements of scratch that the loops need where there is dropout.
inline constexpr int64_t kLoraTile = 4;  // rows that share one pass over a factor
inline int64_t lora_row_scratch(int64_t widest) { return kLoraTile * widest; }
inline int64_t lora_outer_scratch(int64_t rows) { return rows * kLoraColumns; }

}  // namespace twinkle::kernels
