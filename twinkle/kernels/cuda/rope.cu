// A thread a pair of dims of one head of one token, (i, i + half) or (2i, 2i + 1), which turn by
// one angle.
#include "twinkle/kernels/warp/eight.cuh"

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

// A thread eight pairs (i, i + half).
__global__ void turn_eights(RopeRows in, const __nv_bfloat16* x, __nv_bfloat16* y) {
  const auto half = static_cast<unsigned>(in.half), of_head = half / 8;
  const auto of_token = static_cast<unsigned>(in.heads) * of_head;
  const unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned token = at / of_token, head = at % of_token / of_head, i = at % of_head * 8;
  if (token >= in.tokens) return;
  const int64_t angle = in.position_ids[token] * in.half + i;
  const int64_t first = (int64_t{token} * in.heads + head) * in.dim + i, second = first + half;
  const Eight a = load_eight(x + first, true), b = load_eight(x + second, true);
  const float sign = in.backward ? -1.0f : 1.0f;
  const auto turned = [&](bool of_second) {
    return eight_of([&](int e) {
      const float cos = in.cos[angle + e], sin = sign * in.sin[angle + e];
      const float u = value_of(a, e), v = value_of(b, e);
      return of_second ? v * cos + u * sin : u * cos - v * sin;
    });
  };
  const Eight to_first = turned(false), to_second = turned(true);
  *reinterpret_cast<Eight*>(y + first) = to_first;
  *reinterpret_cast<Eight*>(y + second) = to_second;
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
    const bool eights = in_eights(type, in.half) && in.dim % 8 == 0 && !in.neighbours &&
                        rotated / 8 < (int64_t{1} << 31);
    if constexpr (sizeof(T) == 2) {
      if (eights) launch("rope", grid_for(rotated / 8), stream, turn_eights, in, x, to);
    }
    if (!eights) launch("rope", grid_for(rotated), stream, turn<T>, in, x, to);
    if (in.x != y) launch("rope", grid_for(rest), stream, copy_rest<T>, in, x, to);
  });
}

}  // namespace twinkle::kernels::cuda
