#include "twinkle/kernels/delta/sigmoid_gate.h"

#include <ATen/ops/empty_like.h>

#include "twinkle/kernels/simd/dispatch.h"
#include "twinkle/kernels/simd/tasks.h"

namespace twinkle::kernels {
namespace {

constexpr int64_t kElements = 4096;  // worth a thread's start

void check_gate(const at::Tensor& x, const at::Tensor& gate) {
  require(x.is_cpu(), Code::kInvalid, "kernels: sigmoid_gate's x is on ", x.device(),
          "; it runs on the CPU only");
  require_like(gate, "sigmoid_gate's gate", x, "x");
}

}  // namespace

at::Tensor sigmoid_gate(const at::Tensor& x, const at::Tensor& gate, const Simd& simd) {
  check_gate(x, gate);
  const at::Tensor xs = x.contiguous(), gates = gate.contiguous(), out = at::empty_like(xs);
  with_type(x, "sigmoid_gate's x", [&]<class T>(T) {
    const T *from = xs.const_data_ptr<T>(), *by = gates.const_data_ptr<T>();
    T* to = out.mutable_data_ptr<T>();
    parallel_for(0, xs.numel(), kElements, [&](int64_t begin, int64_t end) {
      simd.loops<T>().sigmoid_gate(from + begin, by + begin, end - begin, to + begin);
    });
  });
  return out;
}

SigmoidGateGrads sigmoid_gate_backward(const at::Tensor& grad, const at::Tensor& x,
                                       const at::Tensor& gate, const Simd& simd) {
  check_gate(x, gate);
  require_like(grad, "sigmoid_gate's gradient", x, "x");
  const at::Tensor slope = grad.contiguous(), xs = x.contiguous(), gates = gate.contiguous();
  const SigmoidGateGrads out{at::empty_like(xs), at::empty_like(xs)};
  with_type(x, "sigmoid_gate's x", [&]<class T>(T) {
    const T *dy = slope.const_data_ptr<T>(), *from = xs.const_data_ptr<T>(),
            *by = gates.const_data_ptr<T>();
    T *dx = out.x.mutable_data_ptr<T>(), *dgate = out.gate.mutable_data_ptr<T>();
    parallel_for(0, xs.numel(), kElements, [&](int64_t begin, int64_t end) {
      simd.loops<T>().sigmoid_gate_backward(dy + begin, from + begin, by + begin, end - begin,
                                            dx + begin, dgate + begin);
    });
  });
  return out;
}

}  // namespace twinkle::kernels
