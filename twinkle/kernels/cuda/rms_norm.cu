// One block a row: its squares are summed by thread, then over the block in a fixed order. Rows of
// bfloat16 lie in registers, and short ones have a warp each.
#include "twinkle/kernels/warp/eight.cuh"

namespace twinkle::kernels::cuda {
namespace {

template <class T>
__device__ Wide<T> scale_of(const T* x, int64_t width, Wide<T> eps) {
  Wide<T> squares = 0;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) squares += wide(x[i]) * wide(x[i]);
  return rsqrt(block_sum(squares) / static_cast<Wide<T>>(width) + eps);
}

template <class T>
__global__ void forward(const T* x, const Wide<T>* weight, int64_t width, Wide<T> eps, T* y) {
  const T* row = x + int64_t{blockIdx.x} * width;
  const Wide<T> scale = scale_of(row, width, eps);
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    y[int64_t{blockIdx.x} * width + i] = narrow<T>(wide(row[i]) * scale * weight[i]);
  }
}

// dx = s (g w - x s^2 mean(g w x)), s = 1 / sqrt(mean(x^2) + eps).
template <class T>
__global__ void backward(const T* grad, const T* x, const Wide<T>* weight, int64_t width,
                         Wide<T> eps, T* dx) {
  const T* row = x + int64_t{blockIdx.x} * width;
  const T* g = grad + int64_t{blockIdx.x} * width;
  const Wide<T> scale = scale_of(row, width, eps);
  Wide<T> dot = 0;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    dot += wide(g[i]) * weight[i] * wide(row[i]);
  }
  const Wide<T> pull = block_sum(dot) * scale * scale / static_cast<Wide<T>>(width);
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    dx[int64_t{blockIdx.x} * width + i] =
        narrow<T>(scale * (wide(g[i]) * weight[i] - wide(row[i]) * pull));
  }
}

constexpr int kMostEights = 4;  // eights of a row that a thread has

// A row that a warp, or a block, has in its registers.
template <bool kByWarp>
struct Row {
  int64_t row = kByWarp ? int64_t{blockIdx.x} * kWarps + threadIdx.x / 32 : blockIdx.x;
  int lane = static_cast<int>(threadIdx.x) % (kByWarp ? 32 : kThreads);

  static constexpr int kLanes = kByWarp ? 32 : kThreads;
  __device__ bool has(int n, int64_t eights) const { return lane + n * kLanes < eights; }
  __device__ void load(const Eight* x, int64_t eights, Eight (&to)[kMostEights]) const {
    for (int n = 0; n < kMostEights; ++n) {
      to[n] = has(n, eights) ? x[row * eights + lane + n * kLanes] : Eight{};
    }
  }
  __device__ static float sum(float value) {
    if constexpr (kByWarp) return over_warp(value, [](float a, float b) { return a + b; });
    return block_sum(value);
  }
};

// Eight weights, float32 or bfloat16.
struct Weights {
  float of[8];

  __device__ Weights(const void* weight, bool narrow, int64_t at) {
    if (narrow) {
      const Eight some = static_cast<const Eight*>(weight)[at];
      for (int i = 0; i < 8; ++i) of[i] = value_of(some, i);
    } else {
      for (int i = 0; i < 8; ++i) of[i] = static_cast<const float*>(weight)[8 * at + i];
    }
  }
};

template <bool kByWarp>
__global__ void forward_eights(const Eight* x, const void* weight, bool narrow, int64_t rows,
                               int64_t eights, float eps, Eight* y) {
  const Row<kByWarp> mine;
  if (mine.row >= rows) return;
  Eight in[kMostEights];
  mine.load(x, eights, in);
  float squares = 0;
  for (const Eight& some : in) {
    for (int i = 0; i < 8; ++i) squares += value_of(some, i) * value_of(some, i);
  }
  const float scale = rsqrt(mine.sum(squares) / static_cast<float>(8 * eights) + eps);
  for (int n = 0; n < kMostEights; ++n) {
    if (!mine.has(n, eights)) break;
    const int64_t at = mine.lane + n * mine.kLanes;
    const Weights weights(weight, narrow, at);
    y[mine.row * eights + at] =
        eight_of([&](int i) { return value_of(in[n], i) * scale * weights.of[i]; });
  }
}

template <bool kByWarp>
__global__ void backward_eights(const Eight* grad, const Eight* x, const void* weight, bool narrow,
                                int64_t rows, int64_t eights, float eps, Eight* dx) {
  const Row<kByWarp> mine;
  if (mine.row >= rows) return;
  Eight in[kMostEights], g[kMostEights];
  mine.load(x, eights, in);
  mine.load(grad, eights, g);
  float squares = 0, dot = 0;
  for (int n = 0; n < kMostEights; ++n) {
    if (!mine.has(n, eights)) break;
    const Weights weights(weight, narrow, mine.lane + n * mine.kLanes);
    for (int i = 0; i < 8; ++i) {
      squares += value_of(in[n], i) * value_of(in[n], i);
      dot += value_of(g[n], i) * weights.of[i] * value_of(in[n], i);
    }
  }
  const float width = static_cast<float>(8 * eights);
  const float scale = rsqrt(mine.sum(squares) / width + eps);
  const float pull = mine.sum(dot) * scale * scale / width;
  for (int n = 0; n < kMostEights; ++n) {
    if (!mine.has(n, eights)) break;
    const int64_t at = mine.lane + n * mine.kLanes;
    const Weights weights(weight, narrow, at);
    dx[mine.row * eights + at] = eight_of([&](int i) {
      return scale * (value_of(g[n], i) * weights.of[i] - value_of(in[n], i) * pull);
    });
  }
}

template <class T>
__global__ void row_scales(const T* x, int64_t width, Wide<T> eps, Wide<T>* scale) {
  const Wide<T> s = scale_of(x + int64_t{blockIdx.x} * width, width, eps);
  if (threadIdx.x == 0) scale[blockIdx.x] = s;
}

// A thread a column: the rows of a sequence are one sum, and the sequences are added in order.
template <class T>
__global__ void weight_grad(const T* grad, const T* x, const Wide<T>* scale, int64_t width,
                            const int64_t* rows_of, int64_t num_sequences, Wide<T>* sum) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= width) return;
  Wide<T> total = sum[column];
  for (int64_t s = 0; s < num_sequences; ++s) {
    Wide<T> part = 0;
    for (int64_t r = rows_of[s]; r < rows_of[s + 1]; ++r) {
      part += wide(grad[r * width + column]) * wide(x[r * width + column]) * scale[r];
    }
    total += part;
  }
  sum[column] = total;
}

bool by_warp(const RmsNormRows& in) { return in.width <= 8 * 32 * kMostEights; }
Grid grid_of(const RmsNormRows& in) {
  return {.x = by_warp(in) ? (in.rows + kWarps - 1) / kWarps : in.rows};
}

}  // namespace

bool rms_norm_reads_weight(Type type, int64_t width) {
  return in_eights(type, width) && width <= 8 * kThreads * kMostEights;
}

void rms_norm(Type type, const RmsNormRows& in, void* y, Stream stream) {
  if (rms_norm_reads_weight(type, in.width)) {
    return launch("rms_norm", grid_of(in), stream,
                  by_warp(in) ? forward_eights<true> : forward_eights<false>,
                  static_cast<const Eight*>(in.x), in.weight, in.weight_like_x, in.rows,
                  in.width / 8, in.eps, static_cast<Eight*>(y));
  }
  with_type(type, [&]<class T>(T) {
    launch("rms_norm", {.x = in.rows}, stream, forward<T>, static_cast<const T*>(in.x),
           static_cast<const Wide<T>*>(in.weight), in.width, in.eps, static_cast<T*>(y));
  });
}

void rms_norm_backward(Type type, const RmsNormRows& in, const void* grad, void* dx,
                       Stream stream) {
  if (rms_norm_reads_weight(type, in.width)) {
    return launch("rms_norm_backward", grid_of(in), stream,
                  by_warp(in) ? backward_eights<true> : backward_eights<false>,
                  static_cast<const Eight*>(grad), static_cast<const Eight*>(in.x), in.weight,
                  in.weight_like_x, in.rows, in.width / 8, in.eps, static_cast<Eight*>(dx));
  }
  with_type(type, [&]<class T>(T) {
    launch("rms_norm_backward", {.x = in.rows}, stream, backward<T>, static_cast<const T*>(grad),
           static_cast<const T*>(in.x), static_cast<const Wide<T>*>(in.weight), in.width, in.eps,
           static_cast<T*>(dx));
  });
}

void rms_norm_weight_grad(Type type, const RmsNormRows& in, const RmsNormSum& out, Stream stream) {
  with_type(type, [&]<class T>(T) {
    using A = Wide<T>;
    const T* x = static_cast<const T*>(in.x);
    launch("rms_norm_weight_grad", {.x = in.rows}, stream, row_scales<T>, x, in.width, in.eps,
           static_cast<A*>(out.scales));
    launch("rms_norm_weight_grad", grid_for(in.width), stream, weight_grad<T>,
           static_cast<const T*>(out.grad), x, static_cast<const A*>(out.scales), in.width,
           out.rows_of, out.num_sequences, static_cast<A*>(out.sum));
  });
}

}  // namespace twinkle::kernels::cuda
