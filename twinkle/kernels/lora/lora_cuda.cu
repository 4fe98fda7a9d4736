// Parts of all ranks in one launch: blocks go to tiles of kLoraTileRows rows of one part, and find
// theirs in the table. For the types and widths that lora_mma.cu does not take. T tokens, r rank.
#include "twinkle/kernels/lora/lora_parts.cuh"

namespace twinkle::kernels::cuda {
namespace {

constexpr int kRows = 4, kRanks = 4;              // that a warp's lanes sum at a time
constexpr int kRowWarps = kLoraTileRows / kRows;  // warps that share out a tile's rows
constexpr int kRankWarps = kWarps / kRowWarps;    // the others share out its ranks
static_assert(kRowWarps * kRankWarps == kWarps);

// A warp sums kRows x kRanks dot products, its lanes over the width.
template <class T>
__global__ void shrink(LoraIn of, const T* in, Wide<T>* h) {
  using A = Wide<T>;
  const LoraRow part = row_of_block(of.table.parts, of.table.num_parts, blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t first = (blockIdx.x - part.first_block) * kLoraTileRows + warp % kRowWarps * kRows;
  const bool masked = of.factor == LoraFactor::kA;
  for (int64_t j = warp / kRowWarps * kRanks; first < part.rows && j < part.rank;
       j += kRankWarps * kRanks) {
    A sums[kRows][kRanks] = {};
    for (int64_t i = lane; i < of.width; i += 32) {
      A x[kRows];
      for (int t = 0; t < kRows; ++t) {
        const int64_t row = first + t;
        x[t] = row < part.rows ? wide(in[(part.begin + row) * of.width + i]) : A(0);
        if (masked) x[t] *= mask_of<A>(part, row, i);
      }
      for (int q = 0; q < kRanks; ++q) {
        if (j + q >= part.rank) continue;
        const A w = wide(factor_of<T>(part, of.factor)[(j + q) * of.width + i]);
        for (int t = 0; t < kRows; ++t) sums[t][q] += x[t] * w;
      }
    }
    for (int t = 0; t < kRows; ++t) {
      for (int q = 0; q < kRanks; ++q) {
        const A sum = over_warp(sums[t][q], [](A a, A b) { return a + b; });
        if (lane != 0 || first + t >= part.rows || j + q >= part.rank) continue;
        h[part.h + (first + t) * part.rank + j + q] = sum * scale_of<A>(part, of.factor);
      }
    }
  }
}

// A thread a column, over the rows of a tile.
template <class T>
__global__ void expand(LoraIn of, const Wide<T>* h, T* out) {
  using A = Wide<T>;
  const LoraRow part = row_of_block(of.table.parts, of.table.num_parts, blockIdx.x);
  const int64_t column = int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (column >= of.width) return;
  const int64_t first = (blockIdx.x - part.first_block) * kLoraTileRows;
  const A* left = h + part.h + first * part.rank;
  const T* factor = factor_of<T>(part, of.factor) + column;
  A sums[kLoraTileRows] = {};
  for (int64_t j = 0; j < part.rank; ++j) {
    const A w = wide(factor[j * of.width]);
    for (int t = 0; t < kLoraTileRows; ++t) {
      if (first + t < part.rows) sums[t] += left[t * part.rank + j] * w;
    }
  }
  for (int t = 0; t < kLoraTileRows; ++t) {
    if (first + t >= part.rows) continue;
    A scale = scale_of<A>(part, of.factor);
    if (of.factor == LoraFactor::kA) scale *= mask_of<A>(part, first + t, column);
    T& to = out[(part.begin + first + t) * of.width + column];
    to = narrow<T>(wide(to) + sums[t] * scale);
  }
}

// 32 columns and kRanks ranks of one factor: the warps share out a part's rows, and their sums are
// added in the order of the warps, from zero for each part.
template <class T>
__global__ void outer(LoraIn of, LoraGrads grads, const T* in, const Wide<T>* h) {
  using A = Wide<T>;
  A* const of_warp = shared<A>();  // [kWarps][kRanks][32]
  const LoraGradRow mine = grads.rows[blockIdx.z];
  const int64_t rank = of.table.parts[grads.order[mine.first]].rank;
  const int64_t j = int64_t{blockIdx.y} * kRanks;
  if (j >= rank) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t column = int64_t{blockIdx.x} * 32 + lane;
  const bool is_a = of.factor == LoraFactor::kA;
  const bool writes = warp < kRanks && j + warp < rank && column < of.width;
  A* const grad = static_cast<A*>(mine.grad) +
                  (is_a ? (j + warp) * of.width + column : column * rank + j + warp);
  A total = writes ? *grad : A(0);
  for (int64_t p = mine.first; p < mine.first + mine.count; ++p) {
    const LoraRow part = of.table.parts[grads.order[p]];
    A sums[kRanks] = {};
    for (int64_t t = warp; t < part.rows && column < of.width; t += kWarps) {
      A x = wide(in[(part.begin + t) * of.width + column]);
      if (is_a) x *= mask_of<A>(part, t, column);
      const A* left = h + part.h + t * rank + j;
      for (int q = 0; q < kRanks; ++q) {
        if (j + q < rank) sums[q] += left[q] * x;
      }
    }
    for (int q = 0; q < kRanks; ++q) of_warp[(warp * kRanks + q) * 32 + lane] = sums[q];
    __syncthreads();
    A sum = 0;
    for (int w = 0; w < kWarps && warp < kRanks; ++w)
      sum += of_warp[(w * kRanks + warp) * 32 + lane];
    total += sum * scale_of<A>(part, of.factor);
    __syncthreads();
  }
  if (writes) *grad = total;
}

}  // namespace

void lora_shrink(Type type, const LoraIn& of, void* h, int64_t size, float* parts, Stream stream) {
  if (in_eights(type, of.width)) {
    return lora_shrink_mma(of, static_cast<float*>(h), size, parts, stream);
  }
  with_type(type, [&]<class T>(T) {
    launch("lora_shrink", {.x = of.table.num_tiles}, stream, shrink<T>, of,
           static_cast<const T*>(of.in), static_cast<Wide<T>*>(h));
  });
}

void lora_expand(Type type, const LoraIn& of, const void* h, void* out, Stream stream) {
  if (in_eights(type, of.width)) {
    return lora_expand_mma(of, static_cast<const float*>(h), static_cast<__nv_bfloat16*>(out),
                           stream);
  }
  with_type(type, [&]<class T>(T) {
    launch("lora_expand", {.x = of.table.num_tiles, .y = grid_for(of.width).x}, stream, expand<T>,
           of, static_cast<const Wide<T>*>(h), static_cast<T*>(out));
  });
}

void lora_outer(Type type, const LoraIn& of, const void* h, const LoraGrads& grads, Stream stream) {
  if (in_eights(type, of.width))
    return lora_outer_mma(of, static_cast<const float*>(h), grads, stream);
  with_type(type, [&]<class T>(T) {
    const Grid grid{.x = (of.width + 31) / 32,
                    .y = (grads.highest_rank + kRanks - 1) / kRanks,
                    .z = grads.num_rows,
                    .shared = kWarps * kRanks * 32 * sizeof(Wide<T>)};
    launch("lora_outer", grid, stream, outer<T>, of, grads, static_cast<const T*>(of.in),
           static_cast<const Wide<T>*>(h));
  });
}

}  // namespace twinkle::kernels::cuda
