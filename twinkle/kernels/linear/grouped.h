// Products of runs of rows with a matrix each, as a layer's experts have them: x W^T of every group
// of rows, all groups' outputs shared out over the threads at once, so that many small groups keep
// them as busy as one large product does. A row has the bits that linear_f32 or linear_bf16 gives
// it. R rows, I inputs, O outputs.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace twinkle::kernels {

struct RowGroup {
  int64_t begin, end;  // rows of x; the groups follow one another, and may be empty
  at::Tensor weight;   // [O, I] contiguous, or the transposed view of a contiguous [I, O]
};

// [R, O], of x [R, I] contiguous, float32 or bfloat16 on the CPU, the weights of its type. Error
// kInvalid: other types or shapes; groups that leave out rows.
at::Tensor grouped_linear(const at::Tensor& x, std::span<const RowGroup> groups);

// How the outputs are shared out. A thread that is free takes the next piece: outputs [first, last)
// of one group's product, `first` at a multiple of its tile.
struct TiledProduct {
  int64_t rows, outputs, tile;
};
struct OutputPiece {
  size_t product;
  int64_t first, last;
};
std::vector<OutputPiece> pieces_of(std::span<const TiledProduct> products, int64_t num_threads);

}  // namespace twinkle::kernels
