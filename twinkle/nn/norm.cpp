#include "twinkle/nn/norm.h"

#include <torch/csrc/autograd/custom_function.h>

#include "twinkle/base/error.h"

namespace twinkle::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Runs of learning sequences, so that a batch of learners alone is one call.
void add_norm_grad(const at::Tensor& dy, const at::Tensor& x, double eps, const Packing& packing,
                   const Owners& owners, at::Tensor& sum) {
  const int64_t n = packing.num_sequences();
  for (int64_t first = 0; first < n; ++first) {
    if (!owners.learn[first]) continue;
    int64_t last = first;
    while (last < n && owners.learn[last]) ++last;
    const int64_t begin = packing.cu_seqlens[first], end = packing.cu_seqlens[last];
    std::vector<int64_t> cu(packing.cu_seqlens.begin() + first,
                            packing.cu_seqlens.begin() + last + 1);
    for (int64_t& row : cu) row -= begin;
    kernels::rms_norm_weight_grad(dy.slice(0, begin, end), x.slice(0, begin, end), eps, cu, sum);
    first = last;
  }
}

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const RmsNorm& norm,
                            const Packing* packing, const Owners* owners) {
    context->save_for_backward({x, norm.weight});
    context->saved_data["eps"] = norm.eps;
    if (norm.grad != nullptr) {
      context->saved_data["grad"] = reinterpret_cast<int64_t>(norm.grad);
      context->saved_data["packing"] = reinterpret_cast<int64_t>(packing);
      context->saved_data["owners"] = reinterpret_cast<int64_t>(owners);
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
      const auto* packing = reinterpret_cast<const Packing*>(data["packing"].toInt());
      const auto* owners = reinterpret_cast<const Owners*>(data["owners"].toInt());
      add_norm_grad(grads[0], x, eps, *packing, *owners, sum);
    }
    at::Tensor dx;
    if (context->needs_input_grad(0)) {
      dx = kernels::rms_norm_backward(grads[0], x, weight, eps);
    }
    return {dx, {}, {}, {}};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const RmsNorm& norm, const Packing& packing,
                    const Owners& owners) {
  require(x.dim() > 1 && x.size(0) == packing.num_tokens(), Code::kInvalid, "nn: rms_norm's x is ",
          x.sizes(), ", its first dim must be the packing's ", packing.num_tokens(), " tokens");
  if (!at::GradMode::is_enabled()) return kernels::rms_norm(x, norm.weight, norm.eps);
  return RmsNormFunction::apply(x, norm, &packing, &owners);
}

kernels::AddedNorm add_rms_norm(const at::Tensor& x, const at::Tensor& delta, const RmsNorm& norm,
                                const Packing& packing, const Owners& owners) {
  if (!at::GradMode::is_enabled()) {
    return kernels::add_rms_norm(x, delta, norm.weight, norm.eps);
  }
  const at::Tensor sum = x + delta;
  return {sum, rms_norm(sum, norm, packing, owners)};
}

}  // namespace twinkle::nn
