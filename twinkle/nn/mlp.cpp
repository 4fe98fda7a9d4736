#include "twinkle/nn/mlp.h"

#include <torch/csrc/autograd/custom_function.h>

#include "twinkle/kernels/swiglu.h"

namespace twinkle::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SwigluFunction : torch::autograd::Function<SwigluFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate,
                            const at::Tensor& up) {
    context->save_for_backward({gate, up});
    return kernels::swiglu(gate, up);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    using Needs = kernels::SwigluNeeds;
    const bool gate = context->needs_input_grad(0), up = context->needs_input_grad(1);
    const Needs needs = gate && up ? Needs::kBoth : gate ? Needs::kGate : Needs::kUp;
    auto out = kernels::swiglu_backward(grads[0], saved[0], saved[1], needs);
    return {std::move(out.gate), std::move(out.up)};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return SwigluFunction::apply(gate, up);
}

}  // namespace twinkle::nn
