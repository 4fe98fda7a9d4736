#include "twinkle/kernels/cuda/device.cuh"

namespace twinkle::kernels::cuda {
namespace {

template <class T>
__global__ void forward(const T* gate, const T* up, int64_t count, T* y) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const Wide<T> g = wide(gate[i]);
  y[i] = narrow<T>(g / (1 + exp(-g)) * wide(up[i]));
}

// With s = sigmoid(g): d/dg (g s) = s (1 + g (1 - s)).
template <class T>
__global__ void backward(const T* grad, const T* gate, const T* up, int64_t count, T* dgate,
                         T* dup) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const Wide<T> d = wide(grad[i]), g = wide(gate[i]), s = 1 / (1 + exp(-g));
  if (dgate != nullptr) dgate[i] = narrow<T>(d * wide(up[i]) * s * (1 + g * (1 - s)));
  if (dup != nullptr) dup[i] = narrow<T>(d * g * s);
}

}  // namespace

void swiglu(Type type, const void* gate, const void* up, int64_t count, void* y, Stream stream) {
  with_type(type, [&]<class T>(T) {
    launch("swiglu", grid_for(count), stream, forward<T>, static_cast<const T*>(gate),
           static_cast<const T*>(up), count, static_cast<T*>(y));
  });
}

void swiglu_backward(Type type, const void* grad, const void* gate, const void* up, int64_t count,
                     const SwigluGradOut& out, Stream stream) {
  with_type(type, [&]<class T>(T) {
    launch("swiglu_backward", grid_for(count), stream, backward<T>, static_cast<const T*>(grad),
           static_cast<const T*>(gate), static_cast<const T*>(up), count,
           static_cast<T*>(out.dgate), static_cast<T*>(out.dup));
  });
}

}  // namespace twinkle::kernels::cuda
