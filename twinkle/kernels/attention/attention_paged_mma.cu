// attention_paged on tensor cores. A warp has a tile: up to 16 queries of one key head, which are
// the heads of its group of some consecutive rows of one sequence. It walks the pages that they
// see, a chunk of them at a time with a running softmax; chunks are merged in order, either here
// (many rows: prompts) or by `merge` (few: decoding, where chunks share out the processor). What is
// computed for a query, and in which order, is fixed by its own position, so it has the same bits
// either way: every sum that both ways have is written as the same fmaf.
#include <cmath>

#include "twinkle/kernels/attention/attention_paged_mma.cuh"
#include "twinkle/kernels/cuda/mma.cuh"

namespace twinkle::kernels::cuda {
namespace {

using Bf16 = __nv_bfloat16;
constexpr int kTokens = static_cast<int>(kPageTokens);
constexpr int kTile = 16;  // queries of a warp: the rows of an mma's A
static_assert(kTokens == 64);

// Which queries the tiles have: of each key head, `rows` rows with `heads` heads each.
struct Tiling {
  int64_t rows, heads, slices, tiles;  // slices of a group's heads; tiles of all rows, a slice each
};

__device__ __host__ inline Tiling tiling_of(const PagedQuery& in) {
  const int64_t group = in.heads / in.pages.key_heads, heads = group < kTile ? group : kTile;
  const int64_t rows = in.rows_together ? kTile / heads : 1;
  return {rows, heads, (group + heads - 1) / heads, (in.places.rows + rows - 1) / rows};
}

// A softmax so far: the largest score, and the sum of exp(score - top).
struct Softmax {
  float top = -INFINITY, sum = 0;
};
// By how much what was summed before is multiplied when `top` rises; 1 while nothing was seen.
__device__ inline float rescale(float top, float new_top) {
  return new_top == -INFINITY ? 1.0f : __expf(top - new_top);
}

// A merge of the chunk into the total: how both are multiplied.
struct Merge {
  float of_total, of_chunk;
};
__device__ inline Merge merge_of(Softmax& total, const Softmax& chunk) {
  const float top = max(total.top, chunk.top);
  const Merge by{rescale(total.top, top), rescale(chunk.top, top)};
  total = {top, fmaf(total.sum, by.of_total, chunk.sum * by.of_chunk)};
  return by;
}
__device__ inline float merged(float total, float chunk, const Merge& by) {
  return fmaf(total, by.of_total, chunk * by.of_chunk);
}

// over the four lanes that hold a row
template <class Combine>
__device__ float over_row(float value, const Combine& combine) {
  for (int lanes = 2; lanes > 0; lanes /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, lanes));
  }
  return value;
}

// A lane's part of a tile: queries g and g + 8.
template <int kDim>
struct Work {
  uint32_t q[kDim / 16][4];
  float out[kDim / 8][4];
  Softmax softmax[2];
  int64_t position[2];  // -1: there is no such query
  int g = static_cast<int>(threadIdx.x) % 32 / 4, t = static_cast<int>(threadIdx.x) % 4;

  __device__ void clear() {
    for (int n = 0; n < kDim / 8; ++n)
      for (int i = 0; i < 4; ++i) out[n][i] = 0;
    softmax[0] = softmax[1] = {};
  }

  // One page of kTokens tokens, the first of which is token `first`; none after `last` is read.
  __device__ void page(const Bf16* k, const Bf16* v, int64_t first, int64_t last, float scale) {
    // Of product n, column g is token 8 g + n; results of lane t are tokens 16 t to 16 t + 15.
    float scores[8][4] = {};
    for (int s = 0; s < kDim / 16; ++s) {
      Eight rows[4];
      for (int i = 0; i < 4; ++i) {
        const int dim = 16 * s + 2 * t + i % 2 + i / 2 * 8;
        rows[i] = load_eight(k + dim * kTokens + 8 * g, true);
      }
      for (int n = 0; n < 8; ++n)
        multiply_add(scores[n], q[s], pair_of(rows[0], rows[1], n), pair_of(rows[2], rows[3], n));
    }
    for (int row = 0; row < 2; ++row) {
      float top = -INFINITY;
      for (int n = 0; n < 8; ++n) {
        for (int half = 0; half < 2; ++half) {
          float& score = scores[n][2 * row + half];
          score *= scale;
        }
      }
      if (first + kTokens - 1 > position[row]) {
        for (int n = 0; n < 8; ++n) {
          for (int half = 0; half < 2; ++half) {
            const bool seen = first + 16 * t + 8 * half + n <= position[row];
            if (!seen) scores[n][2 * row + half] = -INFINITY;
          }
        }
      }
      for (int n = 0; n < 8; ++n)
        for (int half = 0; half < 2; ++half) top = max(top, scores[n][2 * row + half]);
      top = max(softmax[row].top, over_row(top, [](float a, float b) { return max(a, b); }));
      const float by = rescale(softmax[row].top, top), from = top == -INFINITY ? 0.0f : top;
      float sum = 0;
      for (int n = 0; n < 8; ++n) {
        for (int half = 0; half < 2; ++half) {
          float& score = scores[n][2 * row + half];
          score = __expf(score - from);
          sum += score;
        }
      }
      sum = over_row(sum, [](float a, float b) { return a + b; });
      softmax[row] = {top, fmaf(softmax[row].sum, by, sum)};
      for (int n = 0; n < kDim / 8; ++n)
        for (int half = 0; half < 2; ++half) out[n][2 * row + half] *= by;
    }
    // Places of step s along the tokens: 16 t + 4 s to 16 t + 4 s + 3.
    for (int s = 0; s < 4; ++s) {
      const int n = s % 2 * 4, half = s / 2;
      uint32_t weights[4];
      for (int i = 0; i < 4; ++i) {
        const int at = n + i / 2 * 2, of = i % 2 * 2 + half;
        weights[i] = bits_of(__float2bfloat16_rn(scores[at][of])) |
                     bits_of(__float2bfloat16_rn(scores[at + 1][of])) << 16;
      }
      for (int base = 0; base < kDim / 64; ++base) {
        Eight rows[4];
        for (int i = 0; i < 4; ++i) {
          const int token = 16 * t + 4 * s + i;
          rows[i] = load_eight(v + token * kDim + 64 * base + 8 * g, first + token <= last);
        }
        for (int d = 0; d < 8; ++d) {
          multiply_add(out[8 * base + d], weights, pair_of(rows[0], rows[1], d),
                       pair_of(rows[2], rows[3], d));
        }
      }
    }
  }
};

// Element i of out[n]: its query (g or g + 8), and its dim.
__device__ inline int dim_of(int n, int i, int t) {
  return n / 8 * 64 + 16 * t + i % 2 * 8 + n % 8;
}

// A run of rows of one sequence whose chunks are cut alike.
struct Run {
  int64_t first, count;  // rows
  int64_t last;          // the highest position
  PagedChunks chunks;    // as the last row has them
};
__device__ inline Run run_from(const PagedQuery& in, int64_t first, int64_t end) {
  const auto chunks_of = [&](int64_t row) { return paged_chunks(in.places.positions[row], 0); };
  const int64_t sequence = in.places.sequences[first];
  Run run{first, 1, in.places.positions[first], chunks_of(first)};
  for (int64_t row = first + 1; row < end; ++row, ++run.count) {
    const PagedChunks chunks = chunks_of(row);
    if (in.places.sequences[row] != sequence || chunks.pages_each != run.chunks.pages_each) break;
    if (in.places.positions[row] < run.last) continue;
    run.last = in.places.positions[row], run.chunks = chunks;
  }
  return run;
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    attend(PagedQuery in, int64_t most_chunks, float* partial, Bf16* out) {
  const Tiling tiling = tiling_of(in);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t item = int64_t{blockIdx.x} * (blockDim.x / 32) + warp;
  const int64_t tile = item % tiling.tiles, slice = item / tiling.tiles % tiling.slices;
  const int64_t key_head = item / tiling.tiles / tiling.slices;
  if (key_head >= in.pages.key_heads) return;
  const int64_t group = in.heads / in.pages.key_heads;
  float* const total = shared<float>() + warp * kTile * kDim;  // where chunks are merged here
  Work<kDim> work;
  const int64_t tile_end = min((tile + 1) * tiling.rows, in.places.rows);
  for (int64_t row = tile * tiling.rows; row < tile_end;) {
    const Run run = run_from(in, row, tile_end);
    row += run.count;
    const int64_t first_chunk = in.rows_together ? 0 : blockIdx.y;
    const int64_t end_chunk = in.rows_together ? run.chunks.count : first_chunk + 1;
    if (first_chunk >= run.chunks.count) continue;
    int64_t query[2];  // element of [rows * heads]
    for (int i = 0; i < 2; ++i) {
      const int64_t m = work.g + 8 * i, at = run.first + m / tiling.heads;
      const int64_t head = slice * tiling.heads + m % tiling.heads;
      const bool there = m / tiling.heads < run.count && head < group;
      work.position[i] = there ? in.places.positions[at] : -1;
      query[i] = at * in.heads + key_head * group + head;
    }
    for (int s = 0; s < kDim / 16; ++s) {
      for (int i = 0; i < 4; ++i) {
        const auto* const q = static_cast<const Bf16*>(in.q) + query[i % 2] * kDim;
        const bool there = work.position[i % 2] >= 0;
        work.q[s][i] =
            there ? *reinterpret_cast<const uint32_t*>(q + 16 * s + 2 * work.t + i / 2 * 8) : 0u;
      }
    }
    Softmax of_total[2];
    const int32_t* const table =
        in.places.tables + in.places.sequences[run.first] * in.places.table_width;
    for (int64_t chunk = first_chunk; chunk < end_chunk; ++chunk) {
      work.clear();
      const int64_t first_page = chunk * run.chunks.pages_each;
      const int64_t behind = min(first_page + run.chunks.pages_each, run.last / kTokens + 1);
      for (int64_t page = first_page; page < behind; ++page) {
        const int64_t place =
            (int64_t{table[page]} * in.pages.key_heads + key_head) * kTokens * kDim;
        work.page(static_cast<const Bf16*>(in.pages.k) + place,
                  static_cast<const Bf16*>(in.pages.v) + place, page * kTokens, run.last,
                  static_cast<float>(in.scale));
      }
      if (in.rows_together) {
        Merge by[2];
        for (int i = 0; i < 2; ++i) by[i] = merge_of(of_total[i], work.softmax[i]);
        for (int n = 0; n < kDim / 8; ++n) {
          for (int i = 0; i < 4; ++i) {
            float& to = total[(work.g + i / 2 * 8) * kDim + dim_of(n, i, work.t)];
            to = merged(chunk == 0 ? 0.0f : to, work.out[n][i], by[i / 2]);
          }
        }
        continue;
      }
      for (int n = 0; n < kDim / 8; ++n) {
        for (int i = 0; i < 4; ++i) {
          if (work.position[i / 2] < 0) continue;
          float* const mine = partial + (query[i / 2] * most_chunks + chunk) * (kDim + 2);
          mine[dim_of(n, i, work.t)] = work.out[n][i];
        }
      }
      for (int i = 0; i < 2; ++i) {
        if (work.t != 0 || work.position[i] < 0) continue;
        float* const mine = partial + (query[i] * most_chunks + chunk) * (kDim + 2);
        mine[kDim] = work.softmax[i].top, mine[kDim + 1] = work.softmax[i].sum;
      }
    }
    if (!in.rows_together) continue;
    for (int n = 0; n < kDim / 8; ++n) {
      for (int i = 0; i < 4; ++i) {
        if (work.position[i / 2] < 0) continue;
        const int dim = dim_of(n, i, work.t);
        out[query[i / 2] * kDim + dim] =
            __float2bfloat16_rn(total[(work.g + i / 2 * 8) * kDim + dim] / of_total[i / 2].sum);
      }
    }
  }
}

// A warp a query: its chunks become one, in their order.
template <int kDim>
__global__ void merge(PagedQuery in, int64_t most_chunks, const float* partial, Bf16* out) {
  const int64_t query = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (query >= in.places.rows * in.heads) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t count = paged_chunks(in.places.positions[query / in.heads], 0).count;
  float values[kDim / 32] = {};
  Softmax total;
  for (int64_t c = 0; c < count; ++c) {
    const float* const chunk = partial + (query * most_chunks + c) * (kDim + 2);
    const Merge by = merge_of(total, {chunk[kDim], chunk[kDim + 1]});
    for (int i = 0; i < kDim / 32; ++i) {
      values[i] = merged(values[i], chunk[lane + 32 * i], by);
    }
  }
  for (int i = 0; i < kDim / 32; ++i) {
    out[query * kDim + lane + 32 * i] = __float2bfloat16_rn(values[i] / total.sum);
  }
}

template <int kDim>
void run(const PagedQuery& in, const PagedPartial& partial, Bf16* out, Stream stream) {
  const Tiling tiling = tiling_of(in);
  const int64_t items = tiling.tiles * tiling.slices * in.pages.key_heads;
  // A chunk of a few rows is a block's: so they keep most of the processor busy.
  const Grid grid = in.rows_together
                        ? Grid{.x = (items + kWarps - 1) / kWarps,
                               .shared = kWarps * kTile * kDim * sizeof(float)}
                        : Grid{.x = items, .y = partial.most_chunks, .shared = 0, .threads = 32};
  auto* const to = static_cast<float*>(partial.data);
  launch("attention_paged", grid, stream, attend<kDim>, in, partial.most_chunks, to, out);
  if (in.rows_together) return;
  const Grid queries{.x = (in.places.rows * in.heads + kWarps - 1) / kWarps};
  launch("attention_paged", queries, stream, merge<kDim>, in, partial.most_chunks, to, out);
}

}  // namespace

void attention_paged_mma(const PagedQuery& in, const PagedPartial& partial, void* out,
                         Stream stream) {
  auto* const to = static_cast<Bf16*>(out);
  if (in.pages.dim == 64) return run<64>(in, partial, to, stream);
  run<128>(in, partial, to, stream);
}

}  // namespace twinkle::kernels::cuda
