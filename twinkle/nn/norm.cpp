#include "twinkle/nn/norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace twinkle::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType sum_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            double eps, int64_t grad, std::vector<int64_t> cu_seqlens) {
    context->save_for_backward({x, weight});
    context->saved_data["eps"] = eps;
    context->saved_data["grad"] = grad;
    context->saved_data["cu_seqlens"] = std::move(cu_seqlens);
    const auto wide = x.to(sum_dtype(x));
    const auto scale = (wide.square().mean(-1, true) + eps).rsqrt();
    return (wide * scale * weight.to(wide.scalar_type())).to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const double eps = context->saved_data["eps"].toDouble();
    const auto x = saved[0].to(sum_dtype(saved[0])), g = grads[0].to(x.scalar_type());
    const auto scale = (x.square().mean(-1, true) + eps).rsqrt();
    const auto x_hat = x * scale;
    if (auto* grad = reinterpret_cast<WeightGrad*>(context->saved_data["grad"].toInt())) {
      const auto cu_seqlens = context->saved_data["cu_seqlens"].toIntVector();
      auto& sum = grad->buffer(saved[1]);
      for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
        const auto rows = (g * x_hat).slice(0, cu_seqlens[s], cu_seqlens[s + 1]);
        sum += rows.reshape({-1, sum.size(0)}).sum(0).to(sum.scalar_type());
      }
    }
    at::Tensor dx;
    if (context->needs_input_grad(0)) {
      const auto gw = g * saved[1].to(x.scalar_type());
      dx = (scale * (gw - x_hat * (gw * x_hat).mean(-1, true))).to(saved[0].scalar_type());
    }
    return {dx, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const RmsNorm& norm, const Packing& packing) {
  return RmsNormFunction::apply(x, norm.weight, norm.eps, reinterpret_cast<int64_t>(norm.grad),
                                packing.cu_seqlens);
}

}  // namespace twinkle::nn
