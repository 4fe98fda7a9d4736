#include "twinkle/nn/attention/attention.h"

#include <torch/csrc/autograd/custom_function.h>

namespace twinkle::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const std::vector<int64_t>& cu_seqlens,
                            const AttentionOptions& options) {
    auto result = kernels::attention(q, k, v, cu_seqlens, options);
    context->save_for_backward({q, k, v, result.out, result.lse});
    context->saved_data["cu_seqlens"] = cu_seqlens;
    context->saved_data["scale"] = options.scale;
    context->saved_data["window"] = options.window;
    context->saved_data["softcap"] = options.softcap;
    context->saved_data["deterministic"] = options.deterministic;
    return result.out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    auto& data = context->saved_data;
    const AttentionOptions options{.scale = data["scale"].toDouble(),
                                   .window = data["window"].toInt(),
                                   .deterministic = data["deterministic"].toBool(),
                                   .softcap = data["softcap"].toDouble()};
    const kernels::AttentionNeeds needs{.q = context->needs_input_grad(0),
                                        .k = context->needs_input_grad(1),
                                        .v = context->needs_input_grad(2)};
    auto out =
        kernels::attention_backward({grads[0], saved[0], saved[1], saved[2], {saved[3], saved[4]}},
                                    data["cu_seqlens"].toIntVector(), options, needs);
    return {std::move(out.q), std::move(out.k), std::move(out.v), {}, {}};
  }
};

}  // namespace

at::Tensor attention(const at::Tensor& q_THd, const at::Tensor& k_TKd, const at::Tensor& v_TKd,
                     const Rows& rows, const AttentionOptions& options) {
  return AttentionFunction::apply(q_THd, k_TKd, v_TKd, rows.cu_seqlens, options);
}

}  // namespace twinkle::nn
