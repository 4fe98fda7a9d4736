#include "twinkle/nn/delta/delta.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "twinkle/kernels/delta/conv.h"

namespace twinkle::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The data besides tensors for backward.
struct Call : torch::CustomClassHolder {
  Call(const GatedDelta& w, const Rows& rows)
      : w(w), cu_seqlens(rows.cu_seqlens), segments(rows.segments) {}
  // As it is now: it may have ended since the forward.
  std::vector<bool> learn() const {
    std::vector<bool> out(segments.size());
    for (size_t s = 0; s < out.size(); ++s) out[s] = segments[s].learn;
    return out;
  }
  GatedDelta w;
  std::vector<int64_t> cu_seqlens;
  std::vector<Segment> segments;
};

std::vector<kernels::ConvRun> whole(const std::vector<int64_t>& cu_seqlens) {
  std::vector<kernels::ConvRun> runs;
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    runs.push_back({.row = cu_seqlens[s], .count = cu_seqlens[s + 1] - cu_seqlens[s]});
  }
  return runs;
}

kernels::DeltaInputs inputs(const DeltaProjections& in, const at::Tensor& qkv,
                            const GatedDelta& w) {
  return {.qkv = qkv, .a = in.a, .b = in.b, .a_log = w.a_log, .dt_bias = w.dt_bias};
}

at::Tensor normed(const at::Tensor& out, const at::Tensor& z, const GatedDelta& w) {
  return kernels::gated_rms_norm(out, z.view(out.sizes()), w.norm, w.eps).flatten(1);
}

// The sum over each learning sequence's tokens, added in order.
void add_sums(const at::Tensor& terms, const at::Tensor& weight, const Call& call,
              WeightGrad* grad) {
  if (grad == nullptr) return;
  at::Tensor& sum = grad->buffer(weight);
  for (size_t s = 0; s < call.segments.size(); ++s) {
    if (!call.segments[s].learn) continue;
    sum += terms.slice(0, call.cu_seqlens[s], call.cu_seqlens[s + 1]).sum(0).to(sum.scalar_type());
  }
}

struct GatedDeltaFunction : torch::autograd::Function<GatedDeltaFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, const at::Tensor& z,
                            const at::Tensor& a, const at::Tensor& b, const GatedDelta& w,
                            const Rows& rows) {
    auto call = c10::make_intrusive<Call>(w, rows);
    const at::Tensor convolved = kernels::conv_silu(qkv, w.conv, whole(call->cu_seqlens));
    const auto result =
        kernels::delta(inputs({qkv, z, a, b}, convolved, w), w.shape, call->cu_seqlens, true);
    ctx->save_for_backward({qkv, z, a, b, result.out, result.kept});
    ctx->saved_data["call"] = c10::IValue::make_capsule(std::move(call));
    return normed(result.out, z, w);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &qkv = saved[0], &z = saved[1], &out = saved[4], &kept = saved[5];
    const auto holder = ctx->saved_data.at("call").toCapsule();
    const auto& call = static_cast<const Call&>(*holder);
    const GatedDelta& w = call.w;
    const std::vector<bool> learn = call.learn();
    const auto sum_of = [](WeightGrad* grad, const at::Tensor& weight) {
      return grad ? &grad->buffer(weight) : nullptr;
    };
    const auto behind = kernels::gated_rms_norm_backward(
        grads[0].reshape(out.sizes()), out, z.view(out.sizes()), w.norm, w.eps, call.cu_seqlens,
        learn, sum_of(w.norm_grad, w.norm));
    const at::Tensor convolved = kernels::conv_silu(qkv, w.conv, whole(call.cu_seqlens));
    auto inner =
        kernels::delta_backward(behind.x, inputs({qkv, z, saved[2], saved[3]}, convolved, w),
                                w.shape, kept, call.cu_seqlens);
    add_sums(inner.a_log, w.a_log, call, w.a_log_grad);
    add_sums(inner.dt_bias, w.dt_bias, call, w.dt_bias_grad);
    const at::Tensor dqkv = kernels::conv_silu_backward(inner.qkv, qkv, w.conv, call.cu_seqlens,
                                                        learn, sum_of(w.conv_grad, w.conv));
    return {dqkv, behind.gate.view(z.sizes()), std::move(inner.a), std::move(inner.b), {}, {}};
  }
};

}  // namespace

int64_t GatedDelta::saved_bytes(const Rows& rows) const {
  const auto dtype = norm.scalar_type();
  const int64_t values = shape.value_heads * shape.value_dim;
  int64_t bytes = (shape.channels() + 2 * values + 2 * shape.value_heads) *
                  static_cast<int64_t>(c10::elementSize(dtype)) * rows.num_tokens();
  for (size_t s = 0; s < rows.segments.size(); ++s) {
    bytes += kernels::delta_kept_bytes(shape, dtype, rows.cu_seqlens[s + 1] - rows.cu_seqlens[s]);
  }
  return bytes;
}

at::Tensor gated_delta(const DeltaProjections& in, const GatedDelta& w, const Rows& rows) {
  if (at::GradMode::is_enabled()) {
    return GatedDeltaFunction::apply(in.qkv, in.z, in.a, in.b, w, rows);
  }
  const at::Tensor qkv = kernels::conv_silu(in.qkv, w.conv, whole(rows.cu_seqlens));
  return normed(kernels::delta(inputs(in, qkv, w), w.shape, rows.cu_seqlens, false).out, in.z, w);
}

at::Tensor gated_delta(const DeltaProjections& in, const GatedDelta& w,
                       std::span<const kernels::DeltaRun> runs) {
  const int64_t conv = kernels::DeltaState::conv_offset(w.shape, in.qkv.scalar_type());
  std::vector<kernels::ConvRun> conv_runs;
  for (const kernels::DeltaRun& run : runs) {
    conv_runs.push_back({run.row, run.count, run.first, run.state + conv});
  }
  const at::Tensor qkv = kernels::conv_silu(in.qkv, w.conv, conv_runs);
  return normed(kernels::delta_continue(inputs(in, qkv, w), w.shape, runs), in.z, w);
}

}  // namespace twinkle::nn
