#include <ATen/ops/empty_like.h>

#include "twinkle/kernels/cuda/cuda.h"
#include "twinkle/kernels/simd/dispatch.h"
#include "twinkle/kernels/simd/tasks.h"
#include "twinkle/kernels/swiglu.h"

namespace twinkle::kernels {
namespace {

constexpr int64_t kGrain = 4096;  // elements

}  // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up, const Simd& simd) {
  require_like(up, "swiglu's up", gate, "gate");
  if (cuda::takes(gate)) return cuda::swiglu(gate, up);
  const at::Tensor g = gate.contiguous(), u = up.contiguous(), out = at::empty_like(g);
  with_type(gate, "swiglu's gate", [&]<class T>(T) {
    const T* gates = g.const_data_ptr<T>();
    const T* ups = u.const_data_ptr<T>();
    T* to = out.mutable_data_ptr<T>();
    parallel_for(0, g.numel(), kGrain, [&](int64_t begin, int64_t end) {
      simd.loops<T>().swiglu(gates + begin, ups + begin, end - begin, to + begin);
    });
  });
  return out;
}

SwigluGrads swiglu_backward(const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up,
                            SwigluNeeds needs, const Simd& simd) {
  require_like(up, "swiglu's up", gate, "gate");
  require_like(grad, "swiglu's gradient", gate, "gate");
  if (cuda::takes(gate)) return cuda::swiglu_backward(grad, gate, up, needs);
  const at::Tensor d = grad.contiguous(), g = gate.contiguous(), u = up.contiguous();
  SwigluGrads out;
  if (needs != SwigluNeeds::kUp) out.gate = at::empty_like(g);
  if (needs != SwigluNeeds::kGate) out.up = at::empty_like(g);
  with_type(gate, "swiglu's gate", [&]<class T>(T) {
    const T* grads = d.const_data_ptr<T>();
    const T* gates = g.const_data_ptr<T>();
    const T* ups = u.const_data_ptr<T>();
    T* dgate = out.gate.defined() ? out.gate.mutable_data_ptr<T>() : nullptr;
    T* dup = out.up.defined() ? out.up.mutable_data_ptr<T>() : nullptr;
    parallel_for(0, g.numel(), kGrain, [&](int64_t begin, int64_t end) {
      simd.loops<T>().swiglu_backward(grads + begin, gates + begin, ups + begin, end - begin,
                                      dgate != nullptr ? dgate + begin : nullptr,
                                      dup != nullptr ? dup + begin : nullptr);
    });
  });
  return out;
}

}  // namespace twinkle::kernels
