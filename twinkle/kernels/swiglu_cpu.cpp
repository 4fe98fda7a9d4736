#include <ATen/ops/empty_like.h>

#include "twinkle/kernels/cuda/cuda.h"
#include "twinkle/kernels/simd/dispatch.h"
#include "twinkle/kernels/simd/tasks.h"
#include "twinkle/kernels/swiglu.h"

namespace twinkle::kernels {
namespace {

constexpr int64_t kGrain = 4096;  // elements

// With the loop of an activation: loop_of(loops) is Loops<T>'s.
template <class LoopOf>
at::Tensor gated(const at::Tensor& gate, const at::Tensor& up, const Simd& simd,
                 const LoopOf& loop_of) {
  const at::Tensor g = gate.contiguous(), u = up.contiguous(), out = at::empty_like(g);
  with_type(gate, "swiglu's gate", [&]<class T>(T) {
    const T* gates = g.const_data_ptr<T>();
    const T* ups = u.const_data_ptr<T>();
    T* to = out.mutable_data_ptr<T>();
    const auto loop = loop_of(simd.loops<T>());
    parallel_for(0, g.numel(), kGrain, [&](int64_t begin, int64_t end) {
      loop(gates + begin, ups + begin, end - begin, to + begin);
    });
  });
  return out;
}

struct GatedSaved {
  const at::Tensor &grad, &gate, &up;
};

template <class LoopOf>
SwigluGrads gated_backward(const GatedSaved& saved, SwigluNeeds needs, const Simd& simd,
                           const LoopOf& loop_of) {
  const at::Tensor d = saved.grad.contiguous(), g = saved.gate.contiguous(),
                   u = saved.up.contiguous();
  SwigluGrads out;
  if (needs != SwigluNeeds::kUp) out.gate = at::empty_like(g);
  if (needs != SwigluNeeds::kGate) out.up = at::empty_like(g);
  with_type(g, "swiglu's gate", [&]<class T>(T) {
    const T* grads = d.const_data_ptr<T>();
    const T* gates = g.const_data_ptr<T>();
    const T* ups = u.const_data_ptr<T>();
    T* dgate = out.gate.defined() ? out.gate.mutable_data_ptr<T>() : nullptr;
    T* dup = out.up.defined() ? out.up.mutable_data_ptr<T>() : nullptr;
    const auto loop = loop_of(simd.loops<T>());
    parallel_for(0, g.numel(), kGrain, [&](int64_t begin, int64_t end) {
      loop(grads + begin, gates + begin, ups + begin, end - begin,
           dgate != nullptr ? dgate + begin : nullptr, dup != nullptr ? dup + begin : nullptr);
    });
  });
  return out;
}

void check_swiglu(const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up) {
  require_like(up, "swiglu's up", gate, "gate");
  if (grad.defined()) require_like(grad, "swiglu's gradient", gate, "gate");
}

void require_cpu(const at::Tensor& gate) {
  require(gate.is_cpu(), Code::kInvalid, "kernels: geglu's gate is on ", gate.device(),
          "; it runs on the CPU only");
}

}  // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up, const Simd& simd) {
  check_swiglu({}, gate, up);
  if (cuda::takes(gate)) return cuda::swiglu(gate, up);
  return gated(gate, up, simd, [](const auto& loops) { return loops.swiglu; });
}

SwigluGrads swiglu_backward(const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up,
                            SwigluNeeds needs, const Simd& simd) {
  check_swiglu(grad, gate, up);
  if (cuda::takes(gate)) return cuda::swiglu_backward(grad, gate, up, needs);
  return gated_backward({grad, gate, up}, needs, simd,
                        [](const auto& loops) { return loops.swiglu_backward; });
}

at::Tensor geglu(const at::Tensor& gate, const at::Tensor& up, const Simd& simd) {
  check_swiglu({}, gate, up);
  require_cpu(gate);
  return gated(gate, up, simd, [](const auto& loops) { return loops.geglu; });
}

SwigluGrads geglu_backward(const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up,
                           SwigluNeeds needs, const Simd& simd) {
  check_swiglu(grad, gate, up);
  require_cpu(gate);
  return gated_backward({grad, gate, up}, needs, simd,
                        [](const auto& loops) { return loops.geglu_backward; });
}

}  // namespace twinkle::kernels
