#include "twinkle/nn/norm.h"

#include <torch/csrc/autograd/custom_function.h>

#include "twinkle/base/error.h"

namespace twinkle::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The factor of the normed x.
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

// The data besides x for backward; the rows only of a trained weight.
struct NormCall : torch::CustomClassHolder {
  NormCall(const RmsNorm& norm, const Rows& rows)
      : norm(norm), rows(norm.grad != nullptr ? rows : Rows()) {}
  RmsNorm norm;
  Rows rows;
};

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const RmsNorm& norm,
                            const Rows& rows) {
    context->save_for_backward({x});
    context->saved_data["call"] =
        c10::IValue::make_capsule(c10::make_intrusive<NormCall>(norm, rows));
    return kernels::rms_norm(x, scale_of(norm.weight, norm.zero_centred), norm.eps);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const at::Tensor x = context->get_saved_variables()[0];
    const auto capsule = context->saved_data.at("call").toCapsule();
    const auto& call = static_cast<const NormCall&>(*capsule);
    const RmsNorm& norm = call.norm;
    if (norm.grad != nullptr) {
      add_norm_grad(grads[0], x, norm.eps, call.rows, norm.grad->buffer(norm.weight));
    }
    at::Tensor dx;
    if (context->needs_input_grad(0)) {
      dx = kernels::rms_norm_backward(grads[0], x, scale_of(norm.weight, norm.zero_centred),
                                      norm.eps);
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
  return RmsNormFunction::apply(x, norm, rows);
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
