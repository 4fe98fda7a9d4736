#include "twinkle/nn/gate/sigmoid_gate.h"

#include <torch/csrc/autograd/custom_function.h>

#include "twinkle/kernels/sigmoid_gate.h"

namespace twinkle::nn {
namespace {

struct SigmoidGateFunction : torch::autograd::Function<SigmoidGateFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& gate) {
    ctx->save_for_backward({x, gate});
    return kernels::sigmoid_gate(x, gate);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    auto out = kernels::sigmoid_gate_backward(grads[0], saved[0], saved[1]);
    return {std::move(out.x), std::move(out.gate)};
  }
};

}  // namespace

at::Tensor sigmoid_gate(const at::Tensor& x, const at::Tensor& gate) {
  if (!at::GradMode::is_enabled()) return kernels::sigmoid_gate(x, gate);
  return SigmoidGateFunction::apply(x, gate);
}

}  // namespace twinkle::nn
