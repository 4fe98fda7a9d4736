#include "twinkle/nn/linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "twinkle/kernels/linear/linear_bf16.h"
#include "twinkle/nn/linear_node.h"

namespace twinkle::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rows from which the library computes each row in one way. float32: below 16 it takes another
// path. bfloat16: products of at most 16^3 multiply-adds go to ATen's own loop instead of oneDNN,
// and a lone row is summed in another order for some shapes.
int64_t invariant_rows(at::ScalarType type, const at::Tensor& weight) {
  return type == at::kBFloat16 ? std::max<int64_t>(2, 4096 / weight.numel() + 1) : 16;
}

bool is_ours(const at::Tensor& x, const at::Tensor& weight) {
  return x.scalar_type() == at::kBFloat16 && x.is_cpu() && kernels::linear_bf16_is_fast() &&
         (weight.is_contiguous() || weight.t().is_contiguous());
}

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

at::Tensor linear_forward(AutogradContext* ctx, const at::Tensor& x, const Linear& w,
                          const Packing& packing, const Owners& owners) {
  at::Tensor y = row_invariant_linear(x, w.weight, w.bias);
  c10::List<at::Tensor> saved;
  if (w.delta) {
    for (at::Tensor& t : w.delta->forward(x, packing, owners, y)) saved.push_back(std::move(t));
  }
  ctx->saved_data["saved"] = saved;
  ctx->saved_data["weight"] = w.weight;
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
  if (needs_dx) dx = row_invariant_linear(dy, weight.t());
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

at::Tensor row_invariant_linear(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& bias) {
  if (is_ours(x, weight)) return kernels::linear_bf16(x.contiguous(), weight, bias);
  const int64_t rows = x.size(0), needed = invariant_rows(x.scalar_type(), weight);
  if (rows >= needed) return at::linear(x, weight, bias);
  const at::Tensor padded = at::zeros({needed, x.size(1)}, x.options());
  padded.narrow(0, 0, rows).copy_(x);
  return at::linear(padded, weight, bias).narrow(0, 0, rows).contiguous();
}

void add_weight_grad(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                     const Packing& packing, const Owners& owners, WeightGrad& grad) {
  at::Tensor& sum = grad.buffer(weight);
  for (int64_t s = 0; s < packing.num_sequences(); ++s) {
    if (!owners.learn[s]) continue;
    const int64_t begin = packing.cu_seqlens[s], end = packing.cu_seqlens[s + 1];
    sum += dy.slice(0, begin, end).t().mm(x.slice(0, begin, end));
  }
}

at::Tensor linear(const at::Tensor& x, const Linear& w, const Packing& packing,
                  const Owners& owners) {
  if (at::GradMode::is_enabled()) return LinearFunction::apply(x, &w, &packing, &owners);
  at::Tensor y = row_invariant_linear(x, w.weight, w.bias);
  if (w.delta) w.delta->forward(x, packing, owners, y);
  return y;
}

}  // namespace twinkle::nn
