// A thread a pair of dims of one head of one token, (i, i + half) or (2i, 2i + 1), which turn by
// one angle.
#include "twinkle/kernels/cuda/device.cuh"

namespace twinkle::kernels::cuda {
namespace {

template <class T>
__global__ void turn(RopeRows in, const T* x, T* y) {
  const int64_t pairs = in.heads * in.half;
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= in.tokens * pairs) return;
  const int64_t token = at / pairs, head = at % pairs / in.half, i = at % in.half;
  const int64_t angle = in.position_ids[token] * in.half + i;
  const Wide<T> cos = in.cos[angle], sin = in.backward ? -in.sin[angle] : in.sin[angle];
  const int64_t first = (token * in.heads + head) * in.dim + (in.neighbours ? 2 * i : i);
  const int64_t second = first + (in.neighbours ? 1 : in.half);
  const Wide<T> a = wide(x[first]), b = wide(x[second]);
  y[first] = narrow<T>(a * cos - b * sin);
  y[second] = narrow<T>(b * cos + a * sin);
}

// The dims that do not turn.
template <class T>
__global__ void copy_rest(RopeRows in, const T* x, T* y) {
  const int64_t rest = in.dim - 2 * in.half;
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= in.tokens * in.heads * rest) return;
  const int64_t place = at / rest * in.dim + 2 * in.half + at % rest;
  y[place] = x[place];
}

}  // namespace

void rope(Type type, const RopeRows& in, void* y, Stream stream) {
  const int64_t rotated = in.tokens * in.heads * in.half;
  const int64_t rest = in.tokens * in.heads * (in.dim - 2 * in.half);
  with_type(type, [&]<class T>(T) {
    const T* x = static_cast<const T*>(in.x);
    T* to = static_cast<T*>(y);
    launch("rope", grid_for(rotated), stream, turn<T>, in, x, to);
    if (in.x != y) launch("rope", grid_for(rest), stream, copy_rest<T>, in, x, to);
  });
}

}  // namespace twinkle::kernels::cuda
