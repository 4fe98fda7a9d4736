#include "twinkle/nn/linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "twinkle/kernels/simd/team.h"
#include "twinkle/nn/linear_node.h"

namespace twinkle::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The data besides the input for backward. The Linear itself may be a copy on the caller's stack.
struct LinearCall : torch::CustomClassHolder {
  LinearCall(const Linear& linear, const Rows& batch) : w(linear), rows(batch) {}
  Linear w;
  Rows rows;
  std::vector<at::Tensor> saved;
};

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Linear* w,
                            const Rows* rows) {
    if (w->needs_input()) ctx->save_for_backward({x});
    return linear_forward(ctx, x, *w, *rows);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor x = saved.empty() ? at::Tensor() : saved[0];
    return {linear_backward(ctx, grads[0], x, ctx->needs_input_grad(0)), {}, {}};
  }
};

}  // namespace

at::Tensor linear_forward(AutogradContext* ctx, const at::Tensor& x, const Linear& w,
                          const Rows& rows) {
  at::Tensor y = product(x, w);
  auto call = c10::make_intrusive<LinearCall>(w, rows);
  if (w.delta) call->saved = w.delta->forward(x, rows, y);
  ctx->saved_data["call"] = c10::IValue::make_capsule(std::move(call));
  return y;
}

at::Tensor linear_backward(AutogradContext* ctx, const at::Tensor& grad, const at::Tensor& x,
                           bool needs_dx) {
  const auto capsule = ctx->saved_data.at("call").toCapsule();
  const auto& call = static_cast<const LinearCall&>(*capsule);
  const Linear& w = call.w;
  const Rows& rows = call.rows;
  const at::Tensor after = grad.contiguous();
  const at::Tensor dy = w.delta ? w.delta->grad_before(after, call.saved, rows) : after;
  at::Tensor dx;
  if (needs_dx) dx = transposed_product(dy, w.weight, w.exact);
  if (w.delta) w.delta->backward(dy, x, call.saved, rows, dx);
  if (w.weight_grad) add_weight_grad(dy, x, w.weight, rows, *w.weight_grad);
  if (w.bias_grad) add_bias_grad(dy, rows, w.bias_grad->buffer(w.weight.select(1, 0)));
  return dx;
}

at::Tensor product(const at::Tensor& x, const Linear& w) {
  return w.exact ? batch_invariant_linear(x, w.weight, w.bias) : plain_linear(x, w.weight, w.bias);
}

at::Tensor transposed_product(const at::Tensor& dy, const at::Tensor& weight, bool exact) {
  return exact ? batch_invariant_linear(dy, weight.t()) : plain_linear(dy, weight.t(), {});
}

void add_weight_grad(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                     const Rows& rows, WeightGrad& grad) {
  add_weight_grad(dy, x, rows, grad.buffer(weight));
}

void add_weight_grad(const at::Tensor& dy, const at::Tensor& x, const Rows& rows, at::Tensor sum) {
  for (int64_t s = 0; s < rows.num_segments(); ++s) {
    if (!rows.segments[s].learn) continue;
    const int64_t begin = rows.cu_seqlens[s], end = rows.cu_seqlens[s + 1];
    add_thread_invariant_product(sum, dy.slice(0, begin, end).t(), x.slice(0, begin, end));
  }
}

void add_bias_grad(const at::Tensor& dy, const Rows& rows, at::Tensor sum) {
  for (int64_t s = 0; s < rows.num_segments(); ++s) {
    if (!rows.segments[s].learn) continue;
    sum += dy.slice(0, rows.cu_seqlens[s], rows.cu_seqlens[s + 1]).to(sum.scalar_type()).sum(0);
  }
}

void prefetch(const Linear& w) {
  if (!w.weight.is_cpu()) return;
  kernels::will_read(w.weight.const_data_ptr(), static_cast<int64_t>(w.weight.nbytes()));
}

at::Tensor linear(const at::Tensor& x, const Linear& w, const Rows& rows) {
  if (at::GradMode::is_enabled()) return LinearFunction::apply(x, &w, &rows);
  at::Tensor y = product(x, w);
  if (w.delta) w.delta->forward(x, rows, y);
  return y;
}

}  // namespace twinkle::nn
