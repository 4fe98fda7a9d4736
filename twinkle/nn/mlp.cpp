#include "twinkle/nn/mlp.h"

#include "twinkle/kernels/swiglu.h"
#include "twinkle/nn/linear_node.h"

namespace twinkle::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor activated(const at::Tensor& gate, const at::Tensor& up, bool gelu) {
  return gelu ? kernels::geglu(gate, up) : kernels::swiglu(gate, up);
}

struct SwigluLinear : torch::autograd::Function<SwigluLinear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up,
                            const Linear* down, const Rows* rows, bool gelu) {
    ctx->save_for_backward({gate, up});
    ctx->saved_data["needs_input"] = down->needs_input();
    ctx->saved_data["gelu"] = gelu;
    return linear_forward(ctx, activated(gate, up, gelu), *down, *rows);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    using Needs = kernels::SwigluNeeds;
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &gate = saved[0], &up = saved[1];
    const bool needs_gate = ctx->needs_input_grad(0), needs_up = ctx->needs_input_grad(1);
    const bool gelu = ctx->saved_data["gelu"].toBool();
    at::Tensor x;
    if (ctx->saved_data["needs_input"].toBool()) x = activated(gate, up, gelu);
    const at::Tensor dx = linear_backward(ctx, grads[0], x, needs_gate || needs_up);
    if (!dx.defined()) return {{}, {}, {}, {}, {}};
    const Needs needs = needs_gate && needs_up ? Needs::kBoth
                        : needs_gate           ? Needs::kGate
                                               : Needs::kUp;
    auto out = gelu ? kernels::geglu_backward(dx, gate, up, needs)
                    : kernels::swiglu_backward(dx, gate, up, needs);
    return {std::move(out.gate), std::move(out.up), {}, {}, {}};
  }
};

}  // namespace

at::Tensor swiglu_linear(const at::Tensor& gate, const at::Tensor& up, const Linear& down,
                         const Rows& rows, Activation activation) {
  const bool gelu = activation == Activation::kGeluTanh;
  if (!at::GradMode::is_enabled()) return linear(activated(gate, up, gelu), down, rows);
  return SwigluLinear::apply(gate, up, &down, &rows, gelu);
}

}  // namespace twinkle::nn
