// attention_paged on tensor cores. A warp has a tile: up to 16 queries of one key head, which are
// the heads of its group of some consecutive rows of one sequence. A block's warps have tiles that
// follow each other, and share the pages, which are copied to shared memory while those before are
// worked on. It walks the pages a chunk at a time with a running softmax; chunks are merged in
// order, either here (many rows: prompts) or by `merge` (few: decoding, where chunks share out the
// processor and one warp has work). What is computed for a query, and in which order, is fixed by
// its own position, so it has the same bits either way: every sum that both ways have is written as
// the same fmaf.
// Of one sequence a value that is not finite may reach rows before it, as 0 times it, where they
// share a tile.
#include <cmath>

#include "twinkle/kernels/attention/attention_paged_mma.cuh"
#include "twinkle/kernels/warp/mma.cuh"

namespace twinkle::kernels::cuda {
namespace {

using Bf16 = __nv_bfloat16;
constexpr int kTokens = static_cast<int>(kPageTokens);
constexpr int kTile = 16;  // queries of a warp: the rows of an mma's A
constexpr int kTiles = 4;  // warps of a block
static_assert(kTokens == 64);

// The queries of a block: for one key head, `rows` rows for each warp with `heads` heads each.
struct Tiling {
  int64_t rows, heads, slices,
      blocks;  // slices of a group's heads; blocks for all rows, a slice each
  __device__ __host__ int64_t rows_of_block() const { return rows * kTiles; }
};

__device__ __host__ inline Tiling tiling_of(const PagedQuery& in) {
  const int64_t group = in.heads / in.pages.key_heads, heads = group < kTile ? group : kTile;
  const int64_t slices = (group + heads - 1) / heads;
  if (!in.rows_together) return {1, heads, slices, in.places.rows};
  const int64_t rows = kTile / heads;
  return {rows, heads, slices, (in.places.rows + kTiles * rows - 1) / (kTiles * rows)};
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

// A page in shared memory, in eights: of k [kDim][8], of v [kTokens][kDim / 8]. The eights of a row
// are turned, so that lanes that read rows at once do not meet in a bank.
template <int kDim>
struct Page {
  Eight* k;
  Eight* v;
  static constexpr int kWide = kDim / 8, kSize = 2 * kDim * 8;

  __device__ explicit Page(Eight* memory) : k(memory), v(memory + kDim * 8) {}
  __device__ static int place_of_k(int dim, int at) { return dim * 8 + (at + (dim & ~1)) % 8; }
  __device__ static int place_of_v(int token, int at) {
    return token * kWide + (at & ~7) + (at + (token >> 4) * 2) % 8;
  }
  // None of v's tokens from `count` on is read: they are zeros here.
  __device__ void fetch(const Bf16* from_k, const Bf16* from_v, int64_t count) const {
    for (int i = static_cast<int>(threadIdx.x); i < kDim * 8; i += kTiles * 32) {
      copy_async(k + place_of_k(i / 8, i % 8), reinterpret_cast<const Eight*>(from_k) + i, true);
      copy_async(v + place_of_v(i / kWide, i % kWide), reinterpret_cast<const Eight*>(from_v) + i,
                 i / kWide < count);
    }
  }
};

// A lane's part of a tile: queries g and g + 8. kShared: the block's warps have the tile together.
template <int kDim, bool kShared>
struct Work {
  static constexpr int kOuts = kDim / 8 / (kShared ? kTiles : 1);
  uint32_t q[kDim / 16][4];
  float out[kOuts][4];
  Softmax softmax[2];
  int64_t position[2];  // -1: there is no such query
  int warp = static_cast<int>(threadIdx.x) / 32;
  int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;

  __device__ void clear() {
    for (auto& some : out)
      for (float& x : some) x = 0;
    softmax[0] = softmax[1] = {};
  }
  // Element i of out[n]: its dim.
  __device__ int dim_of(int n, int i) const {
    const int product = kShared ? n / 2 * 8 + 2 * warp + n % 2 : n;
    return product / 8 * 64 + 16 * t + i % 2 * 8 + product % 8;
  }

  // In product n, column g is token 8 g + n; results of lane t are tokens 16 t to 16 t + 15.
  __device__ void dot_products(const Page<kDim>& page, float* shared, float (&scores)[8][4]) const {
    for (auto& some : scores)
      for (float& x : some) x = 0;
    for (int s = 0; s < kDim / 16; ++s) {
      Eight rows[4];
      uint32_t words[4];  // products 2 warp and 2 warp + 1 of kShared
      for (int i = 0; i < 4; ++i) {
        const int dim = 16 * s + 2 * t + i % 2 + i / 2 * 8;
        const Eight* const from = page.k + page.place_of_k(dim, g);
        if constexpr (kShared) {
          words[i] = from->words[warp];
        } else {
          rows[i] = *from;
        }
      }
      if constexpr (kShared) {
        for (int n = 0; n < 2; ++n) {
          const unsigned half = n == 0 ? 0x5410 : 0x7632;
          multiply_add(scores[n], q[s], __byte_perm(words[0], words[1], half),
                       __byte_perm(words[2], words[3], half));
        }
      } else {
        for (int n = 0; n < 8; ++n)
          multiply_add(scores[n], q[s], pair_of(rows[0], rows[1], n), pair_of(rows[2], rows[3], n));
      }
    }
    if constexpr (kShared) {
      for (int n = 0; n < 2; ++n)
        for (int i = 0; i < 4; ++i) shared[((2 * warp + n) * 4 + i) * 32 + lane] = scores[n][i];
      __syncthreads();
      for (int n = 0; n < 8; ++n)
        for (int i = 0; i < 4; ++i) scores[n][i] = shared[(n * 4 + i) * 32 + lane];
    }
  }

  // The page whose first token is token `first`. kShared: all threads of the block; shared is for
  // [8][4][32] scores.
  __device__ void add(const Page<kDim>& page, int64_t first, float scale, float* shared) {
    float scores[8][4];
    dot_products(page, shared, scores);
    for (int row = 0; row < 2; ++row) {
      for (int n = 0; n < 8; ++n) {
        for (int half = 0; half < 2; ++half) {
          float& score = scores[n][2 * row + half];
          score = __fmul_rn(score, scale);
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
      float top = -INFINITY;
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
      for (auto& some : out)
        for (int half = 0; half < 2; ++half) some[2 * row + half] *= by;
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
      for (int base = 0; base < kDim / 64; ++base) add_values(page, weights, s, base);
    }
  }

  // weights v of step s, for 64 dims.
  __device__ void add_values(const Page<kDim>& page, const uint32_t (&weights)[4], int s,
                             int base) {
    Eight rows[4];
    uint32_t words[4];
    for (int i = 0; i < 4; ++i) {
      const Eight* const from = page.v + page.place_of_v(16 * t + 4 * s + i, 8 * base + g);
      if constexpr (kShared) {
        words[i] = from->words[warp];
      } else {
        rows[i] = *from;
      }
    }
    if constexpr (kShared) {
      for (int d = 0; d < 2; ++d) {
        const unsigned half = d == 0 ? 0x5410 : 0x7632;
        multiply_add(out[2 * base + d], weights, __byte_perm(words[0], words[1], half),
                     __byte_perm(words[2], words[3], half));
      }
    } else {
      for (int d = 0; d < 8; ++d) {
        multiply_add(out[8 * base + d], weights, pair_of(rows[0], rows[1], d),
                     pair_of(rows[2], rows[3], d));
      }
    }
  }
};

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

template <int kDim, bool kShared>
__global__ void __launch_bounds__(kTiles * 32, 2)
    attend(PagedQuery in, int64_t most_chunks, float* partial, Bf16* out) {
  const Tiling tiling = tiling_of(in);
  const int64_t block = blockIdx.x % tiling.blocks,
                slice = blockIdx.x / tiling.blocks % tiling.slices;
  const int64_t key_head = blockIdx.x / tiling.blocks / tiling.slices;
  const int64_t group = in.heads / in.pages.key_heads;
  Eight* const memory = shared<Eight>();  // two pages; then scores, or where chunks are merged here
  float* const behind = reinterpret_cast<float*>(memory + 2 * Page<kDim>::kSize);
  const int64_t rows = kShared ? 1 : tiling.rows_of_block();
  const int64_t end = min((block + 1) * rows, in.places.rows);
  Work<kDim, kShared> work;
  const int tile = kShared ? 0 : work.warp;  // the warp's place in the block
  float* const total = behind + tile * kTile * kDim;
  for (int64_t row = block * rows; row < end;) {
    const Run run = run_from(in, row, end);
    row += run.count;
    const int64_t each = run.chunks.pages_each, all_pages = run.last / kTokens + 1;
    const int64_t first_page = kShared ? blockIdx.y * each : 0;
    const int64_t end_page = kShared ? min(first_page + each, all_pages) : all_pages;
    if (first_page >= end_page) continue;
    int64_t query[2];  // element of [rows * heads]
    for (int i = 0; i < 2; ++i) {
      const int64_t m = work.g + 8 * i, at = tile * tiling.rows + m / tiling.heads;
      const int64_t head = slice * tiling.heads + m % tiling.heads;
      const bool there = m / tiling.heads < tiling.rows && at < run.count && head < group;
      work.position[i] = there ? in.places.positions[run.first + at] : -1;
      query[i] = (run.first + at) * in.heads + key_head * group + head;
    }
    const int64_t last = over_warp(max(work.position[0], work.position[1]),
                                   [](int64_t a, int64_t b) { return max(a, b); });
    for (int s = 0; s < kDim / 16; ++s) {
      for (int i = 0; i < 4; ++i) {
        const auto* const q = static_cast<const Bf16*>(in.q) + query[i % 2] * kDim;
        work.q[s][i] =
            work.position[i % 2] < 0
                ? 0u
                : *reinterpret_cast<const uint32_t*>(q + 16 * s + 2 * work.t + i / 2 * 8);
      }
    }
    const int32_t* const table =
        in.places.tables + in.places.sequences[run.first] * in.places.table_width;
    const auto buffer = [&](int64_t page) {
      return Page<kDim>(memory + page % 2 * Page<kDim>::kSize);
    };
    const auto fetch = [&](int64_t page) {
      const int64_t place = (int64_t{table[page]} * in.pages.key_heads + key_head) * kTokens * kDim;
      buffer(page).fetch(static_cast<const Bf16*>(in.pages.k) + place,
                         static_cast<const Bf16*>(in.pages.v) + place,
                         run.last + 1 - page * kTokens);
    };
    Softmax of_total[2];
    work.clear();
    fetch(first_page);
    commit_copies();
    for (int64_t page = first_page; page < end_page; ++page) {
      if (page + 1 < end_page) fetch(page + 1);
      commit_copies();
      wait_for_copies<1>();
      __syncthreads();
      if (page * kTokens <= last) {
        work.add(buffer(page), page * kTokens, static_cast<float>(in.scale), behind);
      }
      __syncthreads();
      if (page + 1 < end_page && (page + 1) % each != 0) continue;
      const int64_t chunk = page / each;
      if constexpr (kShared) {
        for (int n = 0; n < work.kOuts; ++n) {
          for (int i = 0; i < 4; ++i) {
            if (work.position[i / 2] < 0) continue;
            float* const mine = partial + (query[i / 2] * most_chunks + chunk) * (kDim + 2);
            mine[work.dim_of(n, i)] = work.out[n][i];
          }
        }
        for (int i = 0; i < 2; ++i) {
          if (work.t != 0 || work.warp != 0 || work.position[i] < 0) continue;
          float* const mine = partial + (query[i] * most_chunks + chunk) * (kDim + 2);
          mine[kDim] = work.softmax[i].top, mine[kDim + 1] = work.softmax[i].sum;
        }
      } else {
        Merge by[2];
        for (int i = 0; i < 2; ++i) by[i] = merge_of(of_total[i], work.softmax[i]);
        for (int n = 0; n < work.kOuts; ++n) {
          for (int i = 0; i < 4; ++i) {
            float& to = total[(work.g + i / 2 * 8) * kDim + work.dim_of(n, i)];
            to = merged(chunk == 0 ? 0.0f : to, work.out[n][i], by[i / 2]);
          }
        }
        work.clear();
      }
    }
    if constexpr (!kShared) {
      for (int n = 0; n < work.kOuts; ++n) {
        for (int i = 0; i < 4; ++i) {
          if (work.position[i / 2] < 0) continue;
          const int dim = work.dim_of(n, i);
          out[query[i / 2] * kDim + dim] =
              __float2bfloat16_rn(total[(work.g + i / 2 * 8) * kDim + dim] / of_total[i / 2].sum);
        }
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
  const size_t floats = in.rows_together ? kTiles * kTile * kDim : 8 * 4 * 32;
  const Grid grid{.x = tiling.blocks * tiling.slices * in.pages.key_heads,
                  .y = in.rows_together ? 1 : partial.most_chunks,
                  .shared = 2 * Page<kDim>::kSize * sizeof(Eight) + floats * sizeof(float),
                  .threads = kTiles * 32};
  auto* const to = static_cast<float*>(partial.data);
  if (in.rows_together) {
    return launch("attention_paged", grid, stream, attend<kDim, false>, in, partial.most_chunks, to,
                  out);
  }
  launch("attention_paged", grid, stream, attend<kDim, true>, in, partial.most_chunks, to, out);
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
