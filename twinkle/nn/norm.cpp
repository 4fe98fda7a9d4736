#include "twinkle/nn/norm.h"

#include <torch/csrc/autograd/custom_function.h>

#include "twinkle/base/error.h"
#include "twinkle/kernels/rms_norm.h"

namespace twinkle::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const RmsNorm& norm,
                            const std::vector<int64_t>& cu_seqlens) {
    context->save_for_backward({x, norm.weight});
    context->saved_data["eps"] = norm.eps;
    if (norm.grad != nullptr) {
      context->saved_data["grad"] = reinterpret_cast<int64_t>(norm.grad);
      context->saved_data["cu_seqlens"] = cu_seqlens;
    }
    return kernels::rms_norm(x, norm.weight, norm.eps);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    auto& data = context->saved_data;
    const double eps = data["eps"].toDouble();
    if (const auto grad = data.find("grad"); grad != data.end()) {
      auto& sum = reinterpret_cast<WeightGrad*>(grad->second.toInt())->buffer(weight);
      kernels::rms_norm_weight_grad(grads[0], x, eps, data["cu_seqlens"].toIntVector(), sum);
    }
    at::Tensor dx;
    if (context->needs_input_grad(0)) {
      dx = kernels::rms_norm_backward(grads[0], x, weight, eps);
    }
    return {dx, {}, {}};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const RmsNorm& norm, const Packing& packing) {
  require(x.dim() > 1 && x.size(0) == packing.num_tokens(), Code::kInvalid, "nn: rms_norm's x is ",
          x.sizes(), ", its first dim must be the packing's ", packing.num_tokens(), " tokens");
  if (!at::GradMode::is_enabled()) return kernels::rms_norm(x, norm.weight, norm.eps);
  return RmsNormFunction::apply(x, norm, packing.cu_seqlens);
}

}  // namespace twinkle::nn
