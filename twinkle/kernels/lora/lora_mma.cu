// The products of lora_cuda.cu on tensor cores. Sums are float32: what is float32 already, h and
// the gradient of it, goes in as the sum of three bfloat16 (Split). Dropout is a mask of the
// bfloat16 elements; 1 / (1 - p) comes with the scale.
#include "twinkle/kernels/lora/lora_parts.cuh"
#include "twinkle/kernels/warp/mma.cuh"

namespace twinkle::kernels::cuda {
namespace {

using Bf16 = __nv_bfloat16;
static_assert(kLoraTileRows == 16);  // rows of an mma's A

constexpr int kShrinkRanks = 32;        // ranks whose sums a warp of shrink holds
constexpr int64_t kShrinkColumns = 32;  // that a warp of shrink reads at a time
constexpr int64_t kShrinkPart = 512;    // columns of a block of shrink
constexpr int64_t kColumns = 64;        // columns of a warp of expand, and of a block of outer
constexpr int64_t kExpandColumns = kWarps * kColumns;

struct Lane {
  int warp = static_cast<int>(threadIdx.x) / 32;
  int g = static_cast<int>(threadIdx.x) % 32 / 4;
  int t = static_cast<int>(threadIdx.x) % 4;
};

__device__ bool drops(const LoraRow& part, LoraFactor factor) {
  return factor == LoraFactor::kA && part.key != 0;
}

// scale and 1 / (1 - p), where they apply.
__device__ float factor_scale(const LoraRow& part, LoraFactor factor) {
  if (factor == LoraFactor::kB) return static_cast<float>(part.scale);
  return part.key != 0 ? static_cast<float>(part.keep) : 1.0f;
}

// Zero where elements i to i + 7 of the part's row `token` are dropped.
__device__ Eight kept(Eight x, const LoraRow& part, int64_t token, int64_t i) {
  for (int e = 0; e < 8; ++e) {
    if (mask_of<float>(part, token, i + e) != 0) continue;
    x.words[e / 2] &= e % 2 == 0 ? 0xffff0000u : 0x0000ffffu;
  }
  return x;
}

// A block has 512 columns of 16 rows. Warps share them out, 32 columns at a time; their sums are
// added in their order, and so are, by add_parts, those of the blocks.
__global__ void shrink(LoraIn of, const Bf16* in, int64_t size, float* h) {
  float* const of_warps = shared<float>();  // [kWarps][16][kShrinkRanks]
  const LoraRow part = row_of_block(of.table.parts, of.table.num_parts, blockIdx.x);
  const Lane lane;
  const int64_t first = (blockIdx.x - part.first_block) * kLoraTileRows;
  const bool masked = drops(part, of.factor);
  const int64_t begin = blockIdx.y * kShrinkPart, end = min(begin + kShrinkPart, of.width);
  h += blockIdx.y * size;
  const auto rows = [&](int i) { return first + lane.g + 8 * i; };
  const auto* const factor = factor_of<Bf16>(part, of.factor);
  for (int64_t j = 0; j < part.rank; j += kShrinkRanks) {
    float sums[kShrinkRanks / 8][4] = {};
    for (int64_t c = begin + lane.warp * kShrinkColumns; c < end; c += kWarps * kShrinkColumns) {
      const int64_t column = c + 8 * lane.t;
      Eight x[2];
      for (int i = 0; i < 2; ++i) {
        x[i] = load_eight(in + (part.begin + rows(i)) * of.width + column,
                          rows(i) < part.rows && column < of.width);
        if (masked) x[i] = kept(x[i], part, rows(i), column);
      }
      for (int n = 0; n < kShrinkRanks / 8; ++n) {
        if (j + 8 * n >= part.rank) break;
        const int64_t rank = j + 8 * n + lane.g;
        const Eight w =
            load_eight(factor + rank * of.width + column, rank < part.rank && column < of.width);
        for (int half = 0; half < 4; half += 2) {
          const uint32_t a[4] = {x[0].words[half], x[1].words[half], x[0].words[half + 1],
                                 x[1].words[half + 1]};
          multiply_add(sums[n], a, w.words[half], w.words[half + 1]);
        }
      }
    }
    for (int n = 0; n < kShrinkRanks / 8; ++n) {
      for (int i = 0; i < 4; ++i) {
        const int row = lane.g + i / 2 * 8, rank = 8 * n + 2 * lane.t + i % 2;
        of_warps[(lane.warp * 16 + row) * kShrinkRanks + rank] = sums[n][i];
      }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < 16 * kShrinkRanks; i += kThreads) {
      const int64_t row = first + i / kShrinkRanks, rank = j + i % kShrinkRanks;
      if (row >= part.rows || rank >= part.rank) continue;
      float sum = 0;
      for (int w = 0; w < kWarps; ++w) sum += of_warps[w * 16 * kShrinkRanks + i];
      h[part.h + row * part.rank + rank] = sum * factor_scale(part, of.factor);
    }
    __syncthreads();
  }
}

__global__ void add_parts(const float* parts, int64_t num_parts, int64_t size, float* h) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= size) return;
  float sum = 0;
  for (int64_t p = 0; p < num_parts; ++p) sum += parts[p * size + i];
  h[i] = sum;
}

// A warp has 64 columns of 16 rows; column 8 n + j of them is column n of its product j, so that a
// lane's results lie together.
__global__ void expand(LoraIn of, const float* h, Bf16* out) {
  const LoraRow part = row_of_block(of.table.parts, of.table.num_parts, blockIdx.x);
  const Lane lane;
  const int64_t columns = int64_t{blockIdx.y} * kExpandColumns + lane.warp * kColumns;
  if (columns >= of.width) return;
  const int64_t first = (blockIdx.x - part.first_block) * kLoraTileRows;
  const auto* const factor = factor_of<Bf16>(part, of.factor);
  float sums[8][4] = {};
  for (int64_t j = 0; j < part.rank; j += 16) {
    const int64_t place[4] = {j + 2 * lane.t, j + 2 * lane.t + 1, j + 2 * lane.t + 8,
                              j + 2 * lane.t + 9};
    const auto left = [&](int64_t row, int64_t rank) {
      return row < part.rows && rank < part.rank ? h[part.h + row * part.rank + rank] : 0.0f;
    };
    Split a;
    for (int i = 0; i < 4; ++i) {
      const int64_t row = first + lane.g + i % 2 * 8;
      a.put(i, left(row, place[i / 2 * 2]), left(row, place[i / 2 * 2 + 1]));
    }
    Eight w[4];
    for (int i = 0; i < 4; ++i) {
      const int64_t column = columns + 8 * lane.g;
      w[i] = load_eight(factor + place[i] * of.width + column,
                        place[i] < part.rank && column < of.width);
    }
    for (int n = 0; n < 8; ++n) {
      const uint32_t b0 = pair_of(w[0], w[1], n), b1 = pair_of(w[2], w[3], n);
      multiply_add(sums[n], a, b0, b1);
    }
  }
  const float scale = factor_scale(part, of.factor);
  for (int i = 0; i < 4; ++i) {
    const int64_t row = first + lane.g + i / 2 * 8, column = columns + 16 * lane.t + i % 2 * 8;
    if (row >= part.rows || column >= of.width) continue;
    Bf16* const to = out + (part.begin + row) * of.width + column;
    const Eight before = load_eight(to, true);
    *reinterpret_cast<Eight*>(to) = eight_of([&](int e) {
      const bool dropped = drops(part, of.factor) && mask_of<float>(part, row, column + e) == 0;
      return value_of(before, e) + (dropped ? 0.0f : sums[e][i] * scale);
    });
  }
}

// 64 columns and 16 ranks of one factor: the warps share out a part's rows, 16 at a time, and their
// sums are added in the order of the warps, from zero for each part. Columns as expand's.
__global__ void outer(LoraIn of, LoraGrads grads, const Bf16* in, const float* h) {
  float* const of_warps = shared<float>();  // [kWarps][16][kColumns]
  constexpr int kMine = 16 * kColumns / kThreads;
  const LoraGradRow mine = grads.rows[blockIdx.z];
  const int64_t rank = of.table.parts[grads.order[mine.first]].rank;
  const int64_t j = int64_t{blockIdx.y} * 16, columns = int64_t{blockIdx.x} * kColumns;
  if (j >= rank) return;
  const Lane lane;
  const auto element = [&](int i) {  // the thread's i-th of the block's
    const int at = static_cast<int>(threadIdx.x) + i * kThreads;
    const int64_t r = j + at / kColumns, c = columns + at % kColumns;
    struct {
      int at;
      bool there;
      int64_t place;
    } out{at, r < rank && c < of.width,
          of.factor == LoraFactor::kA ? r * of.width + c : c * rank + r};
    return out;
  };
  auto* const grad = static_cast<float*>(mine.grad);
  float total[kMine];
  for (int i = 0; i < kMine; ++i) total[i] = element(i).there ? grad[element(i).place] : 0.0f;
  for (int64_t p = mine.first; p < mine.first + mine.count; ++p) {
    const LoraRow part = of.table.parts[grads.order[p]];
    const bool masked = drops(part, of.factor);
    const int64_t column = columns + 8 * lane.g;
    float sums[8][4] = {};
    for (int64_t k = lane.warp * 16; k < part.rows; k += kWarps * 16) {
      const int64_t token[4] = {k + 2 * lane.t, k + 2 * lane.t + 1, k + 2 * lane.t + 8,
                                k + 2 * lane.t + 9};
      const auto left = [&](int64_t t, int64_t r) {
        return t < part.rows && r < rank ? h[part.h + t * rank + r] : 0.0f;
      };
      Split a;
      for (int i = 0; i < 4; ++i) {
        const int64_t r = j + lane.g + i % 2 * 8;
        a.put(i, left(token[i / 2 * 2], r), left(token[i / 2 * 2 + 1], r));
      }
      Eight x[4];
      for (int i = 0; i < 4; ++i) {
        x[i] = load_eight(in + (part.begin + token[i]) * of.width + column,
                          token[i] < part.rows && column < of.width);
        if (masked) x[i] = kept(x[i], part, token[i], column);
      }
      for (int n = 0; n < 8; ++n) {
        const uint32_t b0 = pair_of(x[0], x[1], n), b1 = pair_of(x[2], x[3], n);
        multiply_add(sums[n], a, b0, b1);
      }
    }
    for (int n = 0; n < 8; ++n) {
      for (int i = 0; i < 4; ++i) {
        const int r = lane.g + i / 2 * 8, c = 16 * lane.t + i % 2 * 8 + n;
        of_warps[(lane.warp * 16 + r) * kColumns + c] = sums[n][i];
      }
    }
    __syncthreads();
    for (int i = 0; i < kMine; ++i) {
      float sum = 0;
      for (int w = 0; w < kWarps; ++w) sum += of_warps[w * 16 * kColumns + element(i).at];
      total[i] += sum * factor_scale(part, of.factor);
    }
    __syncthreads();
  }
  for (int i = 0; i < kMine; ++i) {
    if (element(i).there) grad[element(i).place] = total[i];
  }
}

}  // namespace

int64_t lora_shrink_parts(Type type, int64_t width) {
  return in_eights(type, width) ? (width + kShrinkPart - 1) / kShrinkPart : 1;
}

void lora_shrink_mma(const LoraIn& of, float* h, int64_t size, float* parts, Stream stream) {
  const int64_t num_parts = lora_shrink_parts(Type::kBf16, of.width);
  const Grid grid{.x = of.table.num_tiles,
                  .y = num_parts,
                  .shared = kWarps * 16 * kShrinkRanks * sizeof(float)};
  launch("lora_shrink", grid, stream, shrink, of, static_cast<const Bf16*>(of.in), size,
         num_parts == 1 ? h : parts);
  if (num_parts > 1)
    launch("lora_shrink", grid_for(size), stream, add_parts, parts, num_parts, size, h);
}

void lora_expand_mma(const LoraIn& of, const float* h, Bf16* out, Stream stream) {
  const Grid grid{.x = of.table.num_tiles, .y = (of.width + kExpandColumns - 1) / kExpandColumns};
  launch("lora_expand", grid, stream, expand, of, h, out);
}

void lora_outer_mma(const LoraIn& of, const float* h, const LoraGrads& grads, Stream stream) {
  const Grid grid{.x = (of.width + kColumns - 1) / kColumns,
                  .y = (grads.highest_rank + 15) / 16,
                  .z = grads.num_rows,
                  .shared = kWarps * 16 * kColumns * sizeof(float)};
  launch("lora_outer", grid, stream, outer, of, grads, static_cast<const Bf16*>(of.in), h);
}

}  // namespace twinkle::kernels::cuda
