#include "twinkle/nn/norm.h"

#include <torch/csrc/autograd/custom_function.h>

#include "twinkle/base/error.h"

namespace twinkle::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What the normed x is multiplied by.
at::Tensor scale_of(const at::Tensor& weight, bool zero_centred) {
  if (!zero_centred) return weight;
  return weight.to(weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat) + 1;
}

// Runs of learning sequences, so that a batch of learners alone is one call.
void add_norm_grad(const at::Tensor& dy, const at::Tensor& x, double eps, const Rows& rows,
                   at::Tensor& sum) {
  const int64_t n = rows.num_segments();
  for (int64_t first = 0; first < n; ++first) {
    if (!rows.segments[first].learn) continue;
    int64_t last = first;
    while (last < n && rows.segments[last].learn) ++last;
    const int64_t begin = rows.cu_seqlens[first], end = rows.cu_seqlens[last];
    std::vector<int64_t> cu(rows.cu_seqlens.begin() + first, rows.cu_seqlens.begin() + last + 1);
    for (int64_t& row : cu) row -= begin;
    kernels::rms_norm_weight_grad(dy.slice(0, begin, end), x.slice(0, begin, end), eps, cu, sum);
    first = last;
  }
}

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const RmsNorm& norm,
                            const Rows* rows) {
    context->save_for_backward({x, norm.weight});
    context->saved_data["eps"] = norm.eps;
    context->saved_data["zero_centred"] = norm.zero_centred;
    if (norm.grad != nullptr) {
      context->saved_data["grad"] = reinterpret_cast<int64_t>(norm.grad);
      context->saved_data["rows"] = reinterpret_cast<int64_t>(rows);
    }
    return kernels::rms_norm(x, scale_of(norm.weight, norm.zero_centred), norm.eps);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    auto& data = context->saved_data;
    const double eps = data["eps"].toDouble();
    if (const auto grad = data.find("grad"); grad != data.end()) {
      auto& sum = reinterpret_cast<WeightGrad*>(grad->second.toInt())->buffer(weight);
      const auto* rows = reinterpret_cast<const Rows*>(data["rows"].toInt());
      add_norm_grad(grads[0], x, eps, *rows, sum);
    }
    at::Tensor dx;
    if (context->needs_input_grad(0)) {
      const bool zero_centred = data["zero_centred"].toBool();
      dx = kernels::rms_norm_backward(grads[0], x, scale_of(weight, zero_centred), eps);
    }
    return {dx, {}, {}};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const RmsNorm& norm, const Rows& rows) {
  require(x.dim() > 1 && x.size(0) == rows.num_tokens(), Code::kInvalid, "nn: rms_norm's x is ",
          x.sizes(), ", its first dim must be the ", rows.num_tokens(), " rows");
  if (!at::GradMode::is_enabled())
    return kernels::rms_norm(x, scale_of(norm.weight, norm.zero_centred), norm.eps);
  return RmsNormFunction::apply(x, norm, &rows);
}

kernels::AddedNorm add_rms_norm(const at::Tensor& x, const at::Tensor& delta, const RmsNorm& norm,
                                const Rows& rows) {
  if (!at::GradMode::is_enabled()) {
    return kernels::add_rms_norm(x, delta, scale_of(norm.weight, norm.zero_centred), norm.eps);
  }
  const at::Tensor sum = x + delta;
  return {sum, rms_norm(sum, norm, rows)};
}

}  // namespace twinkle::nn
