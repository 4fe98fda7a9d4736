#include "twinkle/kernels/sigmoid_gate.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "twinkle/kernels/simd/dispatch.h"
#include "twinkle/kernels/simd/tasks.h"

namespace twinkle::kernels {
namespace {

constexpr int64_t kElements = 4096;  // worth a thread's start

// True if a row has one gate.
bool check_gate(const at::Tensor& x, const at::Tensor& gate) {
  require(x.is_cpu(), Code::kInvalid, "kernels: sigmoid_gate's x is on ", x.device(),
          "; it runs on the CPU only");
  if (x.dim() > 0 && gate.dim() == x.dim() && gate.size(-1) == 1 && x.size(-1) != 1) {
    require_like(gate, "sigmoid_gate's gate", x.narrow(-1, 0, 1), "one column of x");
    return true;
  }
  require_like(gate, "sigmoid_gate's gate", x, "x");
  return false;
}

// The gradient of a row with one gate; computed wide, as the gate's slope is a sum.
template <class T>
T row_backward(const T* grad, const T* x, T gate, std::vector<Wide<T>>& scratch, const Simd& simd,
               int64_t width, T* dx) {
  using A = Wide<T>;
  A *const dy = scratch.data(), *const from = dy + width, *const by = from + width,
           *const to = by + width, *const slopes = to + width;
  std::copy_n(grad, width, dy);
  std::copy_n(x, width, from);
  std::fill_n(by, width, static_cast<A>(gate));
  simd.loops<A>().sigmoid_gate_backward(dy, from, by, width, to, slopes);
  std::copy_n(to, width, dx);
  return static_cast<T>(std::accumulate(slopes, slopes + width, A{0}));
}

}  // namespace

at::Tensor sigmoid_gate(const at::Tensor& x, const at::Tensor& gate, const Simd& simd) {
  check_gate(x, gate);
  const at::Tensor xs = x.contiguous(), gates = gate.expand_as(x).contiguous(),
                   out = at::empty_like(xs);
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
  const bool by_row = check_gate(x, gate);
  require_like(grad, "sigmoid_gate's gradient", x, "x");
  const at::Tensor slope = grad.contiguous(), xs = x.contiguous(), gates = gate.contiguous();
  const SigmoidGateGrads out{at::empty_like(xs), at::empty_like(gates)};
  with_type(x, "sigmoid_gate's x", [&]<class T>(T) {
    const T *dy = slope.const_data_ptr<T>(), *from = xs.const_data_ptr<T>(),
            *by = gates.const_data_ptr<T>();
    T *dx = out.x.mutable_data_ptr<T>(), *dgate = out.gate.mutable_data_ptr<T>();
    if (!by_row) {
      parallel_for(0, xs.numel(), kElements, [&](int64_t begin, int64_t end) {
        simd.loops<T>().sigmoid_gate_backward(dy + begin, from + begin, by + begin, end - begin,
                                              dx + begin, dgate + begin);
      });
      return;
    }
    const int64_t width = x.size(-1);
    parallel_for(0, gates.numel(), row_grain(width), [&](int64_t begin, int64_t end) {
      std::vector<Wide<T>> scratch(static_cast<size_t>(5 * width));
      for (int64_t r = begin; r < end; ++r) {
        dgate[r] = row_backward(dy + r * width, from + r * width, by[r], scratch, simd, width,
                                dx + r * width);
      }
    });
  });
  return out;
}

}  // namespace twinkle::kernels
