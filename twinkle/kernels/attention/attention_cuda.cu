// A block attends from up to kHeads query heads of one row and key head to one chunk of the row's
// pages, page by page with a running softmax; then the chunks of a head are merged in order. Tokens
// that a row does not see are never multiplied, whatever the page holds. For what
// attention_paged_mma.cu does not take.
#include <cmath>

#include "twinkle/kernels/attention/attention_paged_mma.cuh"
#include "twinkle/kernels/cuda/device.cuh"

namespace twinkle::kernels::cuda {
namespace {

constexpr int kHeads = kWarps;  // the softmax of a head is one warp's
constexpr int kTokens = static_cast<int>(kPageTokens);
constexpr int kShares = kThreads / kTokens;  // threads that share out a dot product's dims
static_assert(kTokens == 64);                // two of each lane

constexpr int64_t slices_of(int64_t group) { return (group + kHeads - 1) / kHeads; }

// A block's operands.
struct Task {
  int64_t row, key_head, first_head, num_heads;
};
__device__ Task task_of(const PagedQuery& in) {
  const int64_t group = in.heads / in.pages.key_heads, slices = slices_of(group);
  const int64_t slice = blockIdx.x % slices, key_head = blockIdx.x / slices % in.pages.key_heads;
  const int64_t left = group - slice * kHeads;
  return {blockIdx.x / slices / in.pages.key_heads, key_head, key_head * group + slice * kHeads,
          left < kHeads ? left : kHeads};
}

// Sizes of a block's shared memory.
template <class A>
struct Memory {
  A* q;        // [kHeads][dim]
  A* out;      // [kHeads][dim]
  A* shares;   // [kShares][kHeads][kTokens] of the dot products
  A* weights;  // [kHeads][kTokens] exp(score - top)
  A* rescale;  // [kHeads] for what was summed before a page

  __device__ Memory(A* memory, int64_t dim)
      : q(memory),
        out(q + kHeads * dim),
        shares(out + kHeads * dim),
        weights(shares + kShares * kHeads * kTokens),
        rescale(weights + kHeads * kTokens) {}
};
size_t elements_of_memory(int64_t dim) {
  return static_cast<size_t>(kHeads * (2 * dim + (kShares + 1) * kTokens + 1));
}

// q k of a page's tokens. A thread has one token and every kShares-th dim.
template <class T, class A>
__device__ void dot_products(const T* k, int64_t dim, int64_t num_heads, const Memory<A>& memory) {
  const int token = static_cast<int>(threadIdx.x) % kTokens;
  const int share = static_cast<int>(threadIdx.x) / kTokens;
  A sums[kHeads] = {};
  for (int64_t i = share; i < dim; i += kShares) {
    const A x = wide(k[i * kTokens + token]);
    for (int h = 0; h < kHeads; ++h) {
      if (h < num_heads) sums[h] += memory.q[h * dim + i] * x;
    }
  }
  for (int h = 0; h < kHeads; ++h) memory.shares[(share * kHeads + h) * kTokens + token] = sums[h];
}

// The tokens of a page that a row sees.
struct Seen {
  int64_t begin, end;
};

// Weights of one head's tokens, by the warp of that number; `top` and `sum` are of all pages so
// far.
template <class A>
__device__ void weigh(const Memory<A>& memory, const Seen& seen, A scale, A& top, A& sum) {
  const int head = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  A scores[2], page_top = -INFINITY;
  for (int half = 0; half < 2; ++half) {
    const int token = lane + 32 * half;
    A dot = 0;
    for (int s = 0; s < kShares; ++s) dot += memory.shares[(s * kHeads + head) * kTokens + token];
    scores[half] = token >= seen.begin && token < seen.end ? dot * scale : A(-INFINITY);
    page_top = max(page_top, scores[half]);
  }
  page_top = over_warp(page_top, [](A a, A b) { return max(a, b); });
  const A new_top = max(top, page_top), rescale = exp(top - new_top);
  A page_sum = 0;
  for (int half = 0; half < 2; ++half) {
    const A weight = exp(scores[half] - new_top);
    memory.weights[head * kTokens + lane + 32 * half] = weight;
    page_sum += weight;
  }
  sum = sum * rescale + over_warp(page_sum, [](A a, A b) { return a + b; });
  top = new_top;
  if (lane == 0) memory.rescale[head] = rescale;
}

// A thread a dim of a head: it alone reads and writes memory.out's.
template <class T, class A>
__device__ void add_values(const T* v, int64_t dim, int64_t num_heads, const Seen& seen,
                           const Memory<A>& memory) {
  for (int64_t at = threadIdx.x; at < num_heads * dim; at += blockDim.x) {
    const int64_t head = at / dim, i = at % dim;
    A sum = memory.out[at] * memory.rescale[head];
    for (int64_t t = seen.begin; t < seen.end; ++t) {
      sum += memory.weights[head * kTokens + t] * wide(v[t * dim + i]);
    }
    memory.out[at] = sum;
  }
}

template <class T>
__global__ void attend(PagedQuery in, int64_t most_chunks, Wide<T>* partial) {
  using A = Wide<T>;
  const Task task = task_of(in);
  const int64_t dim = in.pages.dim, position = in.places.positions[task.row];
  const PagedChunks chunks = paged_chunks(position, in.window);
  if (blockIdx.y >= chunks.count) return;
  const Memory<A> memory(shared<A>(), dim);
  const T* q = static_cast<const T*>(in.q) + (task.row * in.heads + task.first_head) * dim;
  for (int64_t at = threadIdx.x; at < task.num_heads * dim; at += blockDim.x) {
    memory.q[at] = wide(q[at]);
    memory.out[at] = A(0);
  }
  __syncthreads();
  const int32_t* table = in.places.tables + in.places.sequences[task.row] * in.places.table_width;
  const int64_t first_seen = in.window > 0 ? position - in.window + 1 : 0;
  const int64_t first_page = chunks.first_page + blockIdx.y * chunks.pages_each;
  const int64_t behind = min(first_page + chunks.pages_each, position / kTokens + 1);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  A top = -INFINITY, sum = 0;
  for (int64_t page = first_page; page < behind; ++page) {
    const int64_t place =
        (int64_t{table[page]} * in.pages.key_heads + task.key_head) * kTokens * dim;
    const int64_t begin = page * kTokens;
    const Seen seen{max(first_seen - begin, int64_t{0}),
                    min(position + 1 - begin, int64_t{kTokens})};
    dot_products(static_cast<const T*>(in.pages.k) + place, dim, task.num_heads, memory);
    __syncthreads();
    if (warp < task.num_heads) weigh(memory, seen, A(in.scale), top, sum);
    __syncthreads();
    add_values(static_cast<const T*>(in.pages.v) + place, dim, task.num_heads, seen, memory);
  }
  A* const mine =
      partial + ((task.row * in.heads + task.first_head) * most_chunks + blockIdx.y) * (dim + 2);
  const int64_t of_head = most_chunks * (dim + 2);
  for (int64_t at = threadIdx.x; at < task.num_heads * dim; at += blockDim.x) {
    mine[at / dim * of_head + at % dim] = memory.out[at];
  }
  if (warp < task.num_heads && threadIdx.x % 32 == 0) {
    mine[warp * of_head + dim] = top;
    mine[warp * of_head + dim + 1] = sum;
  }
}

// One block a head of a row: the chunks' softmaxes become one, in their order.
template <class T>
__global__ void merge(PagedQuery in, int64_t most_chunks, const Wide<T>* partial, T* out) {
  using A = Wide<T>;
  const int64_t dim = in.pages.dim, row = blockIdx.x / in.heads;
  const int64_t count = paged_chunks(in.places.positions[row], in.window).count;
  const A* mine = partial + int64_t{blockIdx.x} * most_chunks * (dim + 2);
  A top = -INFINITY, sum = 0;
  for (int64_t c = 0; c < count; ++c) top = max(top, mine[c * (dim + 2) + dim]);
  for (int64_t c = 0; c < count; ++c) {
    sum += mine[c * (dim + 2) + dim + 1] * exp(mine[c * (dim + 2) + dim] - top);
  }
  for (int64_t i = threadIdx.x; i < dim; i += blockDim.x) {
    A value = 0;
    for (int64_t c = 0; c < count; ++c) {
      value += mine[c * (dim + 2) + i] * exp(mine[c * (dim + 2) + dim] - top);
    }
    out[int64_t{blockIdx.x} * dim + i] = narrow<T>(value / sum);
  }
}

// A thread an element of k and of v.
template <class T>
__global__ void write(PagedPlaces places, PagedPages pages, const T* k, const T* v) {
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t dim = pages.dim, width = pages.key_heads * dim;
  if (at >= places.rows * width) return;
  const int64_t row = at / width, head = at % width / dim, i = at % dim;
  const int64_t position = places.positions[row], slot = position % kTokens;
  const int64_t page =
      places.tables[places.sequences[row] * places.table_width + position / kTokens];
  const int64_t first = (page * pages.key_heads + head) * dim * kTokens;
  static_cast<T*>(pages.k)[first + i * kTokens + slot] = k[at];
  static_cast<T*>(pages.v)[first + slot * dim + i] = v[at];
}

}  // namespace

void write_pages(Type type, const PagedPlaces& places, const PagedPages& pages, const void* k,
                 const void* v, Stream stream) {
  with_type(type, [&]<class T>(T) {
    launch("write_pages", grid_for(places.rows * pages.key_heads * pages.dim), stream, write<T>,
           places, pages, static_cast<const T*>(k), static_cast<const T*>(v));
  });
}

bool attention_paged_in_one_pass(Type type, const PagedQuery& in) {
  return is_for_mma(type, in) && in.rows_together;
}

void attention_paged(Type type, const PagedQuery& in, const PagedPartial& partial, void* out,
                     Stream stream) {
  if (is_for_mma(type, in)) return attention_paged_mma(in, partial, out, stream);
  const int64_t rows = in.places.rows, key_heads = in.pages.key_heads;
  with_type(type, [&]<class T>(T) {
    using A = Wide<T>;
    const Grid grid{.x = rows * key_heads * slices_of(in.heads / key_heads),
                    .y = partial.most_chunks,
                    .shared = elements_of_memory(in.pages.dim) * sizeof(A)};
    launch("attention_paged", grid, stream, attend<T>, in, partial.most_chunks,
           static_cast<A*>(partial.data));
    launch("attention_paged", {.x = rows * in.heads}, stream, merge<T>, in, partial.most_chunks,
           static_cast<const A*>(partial.data), static_cast<T*>(out));
  });
}

}  // namespace twinkle::kernels::cuda
