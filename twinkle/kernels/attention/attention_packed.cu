// Packed attention for what the flash kernels do not take: any element type and head size, and so
// float32 and float64. A block works on one row and head, or, for the gradients of keys and values,
// on one key and key head; it goes through what its row sees by tiles of as many as it has threads.
// No product is shared between blocks, so this is for tests, for small models and for exact
// float32. A row's bits depend on its own sequence alone.
#include <cmath>

#include "twinkle/kernels/cuda/device.cuh"

namespace twinkle::kernels::cuda {
namespace {

template <class A>
__device__ A sum_of(A a, A b) {
  return a + b;
}

// Size of a block's shared memory, after the part that over_block takes.
template <class A>
struct Memory {
  A* rows;     // [num_rows][dim]
  A* weights;  // [num_weights][kThreads]

  __device__ Memory(int64_t num_rows, int64_t dim)
      : rows(shared<A>() + kWarps), weights(rows + num_rows * dim) {}
};
template <class A>
size_t bytes_of_memory(int64_t num_rows, int64_t num_weights, int64_t dim) {
  return static_cast<size_t>(kWarps + num_rows * dim + num_weights * kThreads) * sizeof(A);
}

template <class T, class A>
__device__ A dot(const A* a, const T* b, int64_t dim) {
  A sum = 0;
  for (int64_t i = 0; i < dim; ++i) sum += a[i] * wide(b[i]);
  return sum;
}
template <class T>
__device__ Wide<T> dot_of_rows(const T* a, const T* b, int64_t dim) {
  Wide<T> sum = 0;
  for (int64_t i = 0; i < dim; ++i) sum += wide(a[i]) * wide(b[i]);
  return sum;
}

template <class T, class A>
__device__ void load(A* to, const T* from, int64_t dim) {
  for (int64_t i = threadIdx.x; i < dim; i += blockDim.x) to[i] = wide(from[i]);
}
template <class A>
__device__ void clear(A* to, int64_t dim) {
  for (int64_t i = threadIdx.x; i < dim; i += blockDim.x) to[i] = A(0);
}
template <class T, class A>
__device__ void store(T* to, const A* from, int64_t dim, A factor) {
  for (int64_t i = threadIdx.x; i < dim; i += blockDim.x) to[i] = narrow<T>(from[i] * factor);
}

// to += sum over a tile of weight * row. A thread a dim: it alone reads and writes it.
template <class A, class Row>
__device__ void add_rows(A* to, const A* weights, int64_t count, int64_t dim, const Row& row) {
  for (int64_t i = threadIdx.x; i < dim; i += blockDim.x) {
    A sum = to[i];
    for (int64_t t = 0; t < count; ++t) sum += weights[t] * wide(row(t)[i]);
    to[i] = sum;
  }
}

// The rows that a row sees, or, of a key, those that see it.
struct Seen {
  int64_t begin, end;
};
__device__ Seen keys_of(const PackedRows& in, int64_t row) {
  const int64_t first = in.spans[2 * row];
  return {in.window > 0 ? max(first, row - in.window + 1) : first, row + 1};
}
__device__ Seen queries_of(const PackedRows& in, int64_t row) {
  const int64_t behind = in.spans[2 * row + 1];
  return {row, in.window > 0 ? min(behind, row + in.window) : behind};
}

template <class T>
__global__ void forward(PackedRows in, T* out, Wide<T>* lse) {
  using A = Wide<T>;
  const int64_t dim = in.dim, row = blockIdx.x / in.heads, head = blockIdx.x % in.heads;
  const int64_t key_head = head / (in.heads / in.key_heads), stride = in.key_heads * dim;
  const Memory<A> memory(2, dim);
  A* const q = memory.rows;
  A* const sums = q + dim;
  load(q, static_cast<const T*>(in.q) + int64_t{blockIdx.x} * dim, dim);
  clear(sums, dim);
  __syncthreads();
  const T* const k = static_cast<const T*>(in.k) + key_head * dim;
  const T* const v = static_cast<const T*>(in.v) + key_head * dim;
  const Seen seen = keys_of(in, row);
  A top = -INFINITY, total = 0;
  for (int64_t first = seen.begin; first < seen.end; first += blockDim.x) {
    const int64_t key = first + threadIdx.x;
    const A score = key < seen.end ? dot(q, k + key * stride, dim) * A(in.scale) : A(-INFINITY);
    const A new_top = max(top, over_block(score, A(-INFINITY), [](A a, A b) { return max(a, b); }));
    const A rescale = exp(top - new_top), weight = exp(score - new_top);
    memory.weights[threadIdx.x] = weight;
    total = total * rescale + block_sum(weight);
    top = new_top;
    for (int64_t i = threadIdx.x; i < dim; i += blockDim.x) sums[i] *= rescale;
    add_rows(sums, memory.weights, min(seen.end - first, int64_t{blockDim.x}), dim,
             [&](int64_t t) { return v + (first + t) * stride; });
    __syncthreads();
  }
  store(out + int64_t{blockIdx.x} * dim, sums, dim, A(1) / total);
  if (threadIdx.x == 0) lse[blockIdx.x] = top + log(total);
}

template <class T>
__global__ void query_grad(PackedRows in, PackedSaved saved, T* dq) {
  using A = Wide<T>;
  const int64_t dim = in.dim, row = blockIdx.x / in.heads, head = blockIdx.x % in.heads;
  const int64_t key_head = head / (in.heads / in.key_heads), stride = in.key_heads * dim;
  const int64_t at = int64_t{blockIdx.x} * dim;
  const Memory<A> memory(3, dim);
  A* const q = memory.rows;
  A* const grad = q + dim;
  A* const sums = grad + dim;
  load(q, static_cast<const T*>(in.q) + at, dim);
  load(grad, static_cast<const T*>(saved.grad) + at, dim);
  clear(sums, dim);
  __syncthreads();
  const A mean = dot(grad, static_cast<const T*>(saved.out) + at, dim);
  const A lse = static_cast<const A*>(saved.lse)[blockIdx.x], scale(in.scale);
  const T* const k = static_cast<const T*>(in.k) + key_head * dim;
  const T* const v = static_cast<const T*>(in.v) + key_head * dim;
  const Seen seen = keys_of(in, row);
  for (int64_t first = seen.begin; first < seen.end; first += blockDim.x) {
    const int64_t key = first + threadIdx.x;
    if (key < seen.end) {
      const A weight = exp(dot(q, k + key * stride, dim) * scale - lse);
      memory.weights[threadIdx.x] = weight * (dot(grad, v + key * stride, dim) - mean);
    }
    __syncthreads();
    add_rows(sums, memory.weights, min(seen.end - first, int64_t{blockDim.x}), dim,
             [&](int64_t t) { return k + (first + t) * stride; });
    __syncthreads();
  }
  store(dq + at, sums, dim, scale);
}

// Goes through the rows that see a key, and of each its heads.
template <class T>
__global__ void key_grads(PackedRows in, PackedSaved saved, T* dk, T* dv) {
  using A = Wide<T>;
  const int64_t dim = in.dim, key = blockIdx.x / in.key_heads, key_head = blockIdx.x % in.key_heads;
  const int64_t group = in.heads / in.key_heads, at = int64_t{blockIdx.x} * dim;
  const Memory<A> memory(4, dim);
  A* const k = memory.rows;
  A* const v = k + dim;
  A* const sums_k = v + dim;
  A* const sums_v = sums_k + dim;
  A* const slopes = memory.weights + kThreads;
  load(k, static_cast<const T*>(in.k) + at, dim);
  load(v, static_cast<const T*>(in.v) + at, dim);
  clear(sums_k, dim);
  clear(sums_v, dim);
  __syncthreads();
  const T* const q = static_cast<const T*>(in.q);
  const T* const grad = static_cast<const T*>(saved.grad);
  const T* const out = static_cast<const T*>(saved.out);
  const Seen seen = queries_of(in, key);
  const int64_t count = (seen.end - seen.begin) * group;
  // The place of number `n` among [row][head].
  const auto place = [&](int64_t n) {
    return (seen.begin + n / group) * in.heads + key_head * group + n % group;
  };
  for (int64_t first = 0; first < count; first += blockDim.x) {
    if (const int64_t n = first + threadIdx.x; n < count) {
      const int64_t from = place(n) * dim;
      const A lse = static_cast<const A*>(saved.lse)[place(n)];
      const A weight = exp(dot(k, q + from, dim) * A(in.scale) - lse);
      const A mean = dot_of_rows(grad + from, out + from, dim);
      memory.weights[threadIdx.x] = weight;
      slopes[threadIdx.x] = weight * (dot(v, grad + from, dim) - mean);
    }
    __syncthreads();
    const int64_t some = min(count - first, int64_t{blockDim.x});
    add_rows(sums_k, slopes, some, dim, [&](int64_t t) { return q + place(first + t) * dim; });
    add_rows(sums_v, memory.weights, some, dim,
             [&](int64_t t) { return grad + place(first + t) * dim; });
    __syncthreads();
  }
  store(dk + at, sums_k, dim, A(in.scale));
  store(dv + at, sums_v, dim, A(1));
}

}  // namespace

void attention_packed(Type type, const PackedRows& in, void* out, void* lse, Stream stream) {
  with_type(type, [&]<class T>(T) {
    using A = Wide<T>;
    launch("attention_packed", {in.rows * in.heads, 1, 1, bytes_of_memory<A>(2, 1, in.dim)}, stream,
           forward<T>, in, static_cast<T*>(out), static_cast<A*>(lse));
  });
}

void attention_packed_backward(Type type, const PackedRows& in, const PackedSaved& saved,
                               const PackedGrads& grads, Stream stream) {
  with_type(type, [&]<class T>(T) {
    using A = Wide<T>;
    launch("attention_packed_backward",
           {in.rows * in.heads, 1, 1, bytes_of_memory<A>(3, 1, in.dim)}, stream, query_grad<T>, in,
           saved, static_cast<T*>(grads.q));
    launch("attention_packed_backward",
           {in.rows * in.key_heads, 1, 1, bytes_of_memory<A>(4, 2, in.dim)}, stream, key_grads<T>,
           in, saved, static_cast<T*>(grads.k), static_cast<T*>(grads.v));
  });
}

}  // namespace twinkle::kernels::cuda
