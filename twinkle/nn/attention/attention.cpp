#include "twinkle/nn/attention/attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>

#include "twinkle/nn/linear.h"

namespace twinkle::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The data besides tensors for the backward pass of trained sinks.
struct TrainedSinks : torch::CustomClassHolder {
  TrainedSinks(const at::Tensor& of, const Rows& batch, WeightGrad* to)
      : sinks(of), rows(batch), grad(to) {}
  at::Tensor sinks;
  Rows rows;
  WeightGrad* grad;

  // A head's sink has p = exp(sink - lse) of a row's sum and no value: d loss / d its score is
  // -p <d loss / d out, out>. A few rows at a time: no copy of all of them is made in float32.
  void backward(const at::Tensor& slope, const at::Tensor& out, const at::Tensor& lse) const {
    constexpr int64_t kAtATime = 1 << 16;  // elements
    const auto type = lse.scalar_type();
    const int64_t tokens = out.size(0), row = std::max<int64_t>(1, out.size(1) * out.size(2)),
                  step = std::max<int64_t>(1, kAtATime / row);
    const at::Tensor by_row = at::empty_like(lse);
    for (int64_t begin = 0; begin < tokens; begin += step) {
      const int64_t count = std::min(step, tokens - begin);
      const auto wide = [&](const at::Tensor& x) { return x.narrow(0, begin, count).to(type); };
      by_row.narrow(0, begin, count).copy_((wide(slope) * wide(out)).sum(-1));
    }
    const at::Tensor p = (sinks.to(type) - lse).exp_();
    add_bias_grad(by_row.mul_(p).neg_(), rows, grad->buffer(sinks));
  }
};

struct AttentionCall {
  const Rows& rows;
  const AttentionOptions& options;
  WeightGrad* sinks_grad;
};

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const AttentionCall& call) {
    const auto& [rows, options, sinks_grad] = call;
    const std::vector<int64_t>& cu_seqlens = rows.cu_seqlens;
    auto result = kernels::attention(q, k, v, cu_seqlens, options);
    context->save_for_backward({q, k, v, result.out, result.lse});
    context->saved_data["cu_seqlens"] = cu_seqlens;
    context->saved_data["scale"] = options.scale;
    context->saved_data["window"] = options.window;
    context->saved_data["softcap"] = options.softcap;
    context->saved_data["deterministic"] = options.deterministic;
    if (sinks_grad) {
      context->saved_data["sinks"] = c10::IValue::make_capsule(
          c10::make_intrusive<TrainedSinks>(options.sinks, rows, sinks_grad));
    }
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
    if (const auto sinks = data.find("sinks"); sinks != data.end()) {
      const auto capsule = sinks->second.toCapsule();
      static_cast<const TrainedSinks&>(*capsule).backward(grads[0], saved[3], saved[4]);
    }
    auto out =
        kernels::attention_backward({grads[0], saved[0], saved[1], saved[2], {saved[3], saved[4]}},
                                    data["cu_seqlens"].toIntVector(), options, needs);
    return {std::move(out.q), std::move(out.k), std::move(out.v), {}};
  }
};

}  // namespace

at::Tensor attention(const at::Tensor& q_THd, const at::Tensor& k_TKd, const at::Tensor& v_TKd,
                     const Rows& rows, const AttentionOptions& options, WeightGrad* sinks_grad) {
  return AttentionFunction::apply(q_THd, k_TKd, v_TKd, AttentionCall{rows, options, sinks_grad});
}

}  // namespace twinkle::nn
