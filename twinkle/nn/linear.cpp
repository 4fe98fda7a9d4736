#include "twinkle/nn/linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "twinkle/nn/linear_node.h"

namespace twinkle::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <class T>
const T* pointer(AutogradContext* ctx, const char* name) {
  return reinterpret_cast<const T*>(ctx->saved_data.at(name).toInt());
}

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Linear* w,
                            const Packing* packing, const Owners* owners) {
    if (w->needs_input()) ctx->save_for_backward({x});
    return linear_forward(ctx, x, *w, *packing, *owners);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor x = saved.empty() ? at::Tensor() : saved[0];
    return {linear_backward(ctx, grads[0], x, ctx->needs_input_grad(0)), {}, {}, {}};
  }
};

}  // namespace

Owners Owners::nobody(int64_t num_sequences) {
  const auto n = static_cast<size_t>(num_sequences);
  return {std::vector<int32_t>(n, -1), std::vector<uint64_t>(n, 0), std::vector<uint8_t>(n, 0)};
}

Owners Owners::of_slot(int32_t slot) { return {{slot}, {0}, {0}}; }

Owners Owners::only(size_t sequence) const {
  return {{slot[sequence]}, {key[sequence]}, {learn[sequence]}};
}

at::Tensor linear_forward(AutogradContext* ctx, const at::Tensor& x, const Linear& w,
                          const Packing& packing, const Owners& owners) {
  at::Tensor y = product(x, w);
  c10::List<at::Tensor> saved;
  if (w.delta) {
    for (at::Tensor& t : w.delta->forward(x, packing, owners, y)) saved.push_back(std::move(t));
  }
  ctx->saved_data["saved"] = saved;
  ctx->saved_data["weight"] = w.weight;
  ctx->saved_data["exact"] = w.exact;
  // The Linear itself may be a copy on the caller's stack: what is kept are the objects it points
  // to.
  ctx->saved_data["delta"] = reinterpret_cast<int64_t>(w.delta);
  ctx->saved_data["weight_grad"] = reinterpret_cast<int64_t>(w.weight_grad);
  ctx->saved_data["bias_grad"] = reinterpret_cast<int64_t>(w.bias_grad);
  ctx->saved_data["packing"] = reinterpret_cast<int64_t>(&packing);
  ctx->saved_data["owners"] = reinterpret_cast<int64_t>(&owners);
  return y;
}

at::Tensor linear_backward(AutogradContext* ctx, const at::Tensor& grad, const at::Tensor& x,
                           bool needs_dx) {
  const at::Tensor dy = grad.contiguous();
  const auto* packing = pointer<Packing>(ctx, "packing");
  const auto* owners = pointer<Owners>(ctx, "owners");
  auto* delta = const_cast<Delta*>(pointer<Delta>(ctx, "delta"));
  auto* weight_grad = const_cast<WeightGrad*>(pointer<WeightGrad>(ctx, "weight_grad"));
  auto* bias_grad = const_cast<WeightGrad*>(pointer<WeightGrad>(ctx, "bias_grad"));
  const at::Tensor weight = ctx->saved_data.at("weight").toTensor();
  at::Tensor dx;
  if (needs_dx) dx = transposed_product(dy, weight, ctx->saved_data.at("exact").toBool());
  if (delta) {
    delta->backward(dy, x, ctx->saved_data.at("saved").toTensorVector(), *packing, *owners, dx);
  }
  if (weight_grad) add_weight_grad(dy, x, weight, *packing, *owners, *weight_grad);
  if (bias_grad) {
    at::Tensor& sum = bias_grad->buffer(weight.select(1, 0));
    for (int64_t s = 0; s < packing->num_sequences(); ++s) {
      if (!owners->learn[s]) continue;
      sum += dy.slice(0, packing->cu_seqlens[s], packing->cu_seqlens[s + 1])
                 .to(sum.scalar_type())
                 .sum(0);
    }
  }
  return dx;
}

at::Tensor product(const at::Tensor& x, const Linear& w) {
  return w.exact ? batch_invariant_linear(x, w.weight, w.bias) : plain_linear(x, w.weight, w.bias);
}

at::Tensor transposed_product(const at::Tensor& dy, const at::Tensor& weight, bool exact) {
  return exact ? batch_invariant_linear(dy, weight.t()) : plain_linear(dy, weight.t(), {});
}

void add_weight_grad(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                     const Packing& packing, const Owners& owners, WeightGrad& grad) {
  at::Tensor& sum = grad.buffer(weight);
  for (int64_t s = 0; s < packing.num_sequences(); ++s) {
    if (!owners.learn[s]) continue;
    const int64_t begin = packing.cu_seqlens[s], end = packing.cu_seqlens[s + 1];
    add_thread_invariant_product(sum, dy.slice(0, begin, end).t(), x.slice(0, begin, end));
  }
}

at::Tensor linear(const at::Tensor& x, const Linear& w, const Packing& packing,
                  const Owners& owners) {
  if (at::GradMode::is_enabled()) return LinearFunction::apply(x, &w, &packing, &owners);
  at::Tensor y = product(x, w);
  if (w.delta) w.delta->forward(x, packing, owners, y);
  return y;
}

}  // namespace twinkle::nn
