#include "twinkle/kernels/warp/eight.cuh"

namespace twinkle::kernels::cuda {
namespace {

template <class A>
__device__ A product(A gate, A up) {
  return gate / (1 + exp(-gate)) * up;
}

// With s = sigmoid(g): d/dg (g s) = s (1 + g (1 - s)).
template <class A>
struct Slopes {
  A gate, up;
};
template <class A>
__device__ Slopes<A> slopes(A grad, A gate, A up) {
  const A s = 1 / (1 + exp(-gate));
  return {grad * up * s * (1 + gate * (1 - s)), grad * gate * s};
}

template <class T>
__global__ void forward(const T* gate, const T* up, int64_t count, T* y) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) y[i] = narrow<T>(product(wide(gate[i]), wide(up[i])));
}

template <class T>
__global__ void backward(const T* grad, const T* gate, const T* up, int64_t count, T* dgate,
                         T* dup) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const Slopes<Wide<T>> of = slopes(wide(grad[i]), wide(gate[i]), wide(up[i]));
  if (dgate != nullptr) dgate[i] = narrow<T>(of.gate);
  if (dup != nullptr) dup[i] = narrow<T>(of.up);
}

__global__ void forward_eights(const Eight* gate, const Eight* up, int64_t count, Eight* y) {
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= count) return;
  const Eight g = gate[at], u = up[at];
  y[at] = eight_of([&](int i) { return product(value_of(g, i), value_of(u, i)); });
}

__global__ void backward_eights(const Eight* grad, const Eight* gate, const Eight* up,
                                int64_t count, Eight* dgate, Eight* dup) {
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= count) return;
  const Eight d = grad[at], g = gate[at], u = up[at];
  const auto of = [&](int i) { return slopes(value_of(d, i), value_of(g, i), value_of(u, i)); };
  if (dgate != nullptr) dgate[at] = eight_of([&](int i) { return of(i).gate; });
  if (dup != nullptr) dup[at] = eight_of([&](int i) { return of(i).up; });
}

// By the width, not by how many rows there are: a row has one kernel in any company.
template <class... P>
bool are_eights(Type type, int64_t width, const P*... pointers) {
  const auto together = (uintptr_t{0} | ... | reinterpret_cast<uintptr_t>(pointers));
  return in_eights(type, width) && together % sizeof(Eight) == 0;
}

}  // namespace

void swiglu(Type type, const void* gate, const void* up, const SwigluSize& size, void* y,
            Stream stream) {
  const int64_t count = size.count;
  if (are_eights(type, size.width, gate, up, y)) {
    return launch("swiglu", grid_for(count / 8), stream, forward_eights,
                  static_cast<const Eight*>(gate), static_cast<const Eight*>(up), count / 8,
                  static_cast<Eight*>(y));
  }
  with_type(type, [&]<class T>(T) {
    launch("swiglu", grid_for(count), stream, forward<T>, static_cast<const T*>(gate),
           static_cast<const T*>(up), count, static_cast<T*>(y));
  });
}

void swiglu_backward(Type type, const void* grad, const void* gate, const void* up,
                     const SwigluSize& size, const SwigluGradOut& out, Stream stream) {
  const int64_t count = size.count;
  if (are_eights(type, size.width, grad, gate, up, out.dgate, out.dup)) {
    return launch("swiglu_backward", grid_for(count / 8), stream, backward_eights,
                  static_cast<const Eight*>(grad), static_cast<const Eight*>(gate),
                  static_cast<const Eight*>(up), count / 8, static_cast<Eight*>(out.dgate),
                  static_cast<Eight*>(out.dup));
  }
  with_type(type, [&]<class T>(T) {
    launch("swiglu_backward", grid_for(count), stream, backward<T>, static_cast<const T*>(grad),
           static_cast<const T*>(gate), static_cast<const T*>(up), count,
           static_cast<T*>(out.dgate), static_cast<T*>(out.dup));
  });
}

}  // namespace twinkle::kernels::cuda
