// One block a row: its squares are summed by thread, then over the block in a fixed order.
#include "twinkle/kernels/cuda/device.cuh"

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

}  // namespace

void rms_norm(Type type, const RmsNormRows& in, void* y, Stream stream) {
  with_type(type, [&]<class T>(T) {
    launch("rms_norm", {.x = in.rows}, stream, forward<T>, static_cast<const T*>(in.x),
           static_cast<const Wide<T>*>(in.weight), in.width, in.eps, static_cast<T*>(y));
  });
}

void rms_norm_backward(Type type, const RmsNormRows& in, const void* grad, void* dx,
                       Stream stream) {
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
