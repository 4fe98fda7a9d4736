#include "twinkle/model/blocks/attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "twinkle/base/error.h"
#include "twinkle/nn/attention/attention.h"
#include "twinkle/nn/gate/sigmoid_gate.h"

namespace twinkle::model {

Attention::Attention(const DecoderSpec& decoder, const AttentionSpec& spec, Parts& parts)
    : spec_(spec), head_dim_(spec.head_dim) {
  const int64_t d = decoder.hidden_size, q = spec.num_heads * head_dim_,
                kv = spec.num_kv_heads * head_dim_;
  if (spec.projections == Projections::kSeparate) {
    parts.linear("self_attn.q_proj", {spec.output_gate ? 2 * q : q, d, spec.qkv_bias}, q_);
    parts.linear("self_attn.k_proj", {kv, d, spec.qkv_bias}, k_);
    parts.linear("self_attn.v_proj", {kv, d, spec.qkv_bias}, v_);
  } else {
    parts.linear("self_attn.qkv_proj", {q + 2 * kv, d, spec.qkv_bias}, qkv_);
  }
  parts.linear("self_attn.o_proj", {d, q, spec.o_bias}, o_);
  require(!spec.output_gate || o_.weight.is_cpu(), Code::kInvalid, "model: device is ",
          o_.weight.device(), ", but attention with a gate on its output (", decoder.family,
          ") runs on the CPU only in this version; set the device to cpu");
  if (spec.sinks) {
    parts.weight("self_attn.sinks", {spec.num_heads}, false, sinks_, sinks_grad_);
    require(sinks_.is_cpu(), Code::kInvalid, "model: device is ", sinks_.device(),
            ", but attention with sinks (", decoder.family,
            ") runs on the CPU only in this version; set the device to cpu");
  }
  require(spec.softcap == 0 || o_.weight.is_cpu(), Code::kInvalid, "model: device is ",
          o_.weight.device(), ", but attention with attn_logit_softcapping (", decoder.family,
          ") runs on the CPU only in this version; set the device to cpu");
  if (!spec.qk_norm) return;
  parts.norm("self_attn.q_norm", head_dim_, decoder.norm, q_norm_);
  parts.norm("self_attn.k_norm", head_dim_, decoder.norm, k_norm_);
}

int64_t Attention::num_kv_heads() const {
  if (!fused()) return k_.weight.size(0) / head_dim_;
  const int64_t group = spec_.num_heads / spec_.num_kv_heads;
  return qkv_.weight.size(0) / (head_dim_ * (group + 2));
}

StateSpec Attention::state() const { return {num_kv_heads(), head_dim_}; }

Attention::Heads Attention::heads(const at::Tensor& x, const nn::Rows& rows) const {
  const int64_t tokens = x.size(0);
  if (!fused()) {
    const auto project = [&](const nn::Linear& w) {
      return nn::linear(x, w, rows).view({tokens, -1, head_dim_});
    };
    if (!spec_.output_gate) return {project(q_), project(k_), project(v_)};
    const at::Tensor both = nn::linear(x, q_, rows).view({tokens, -1, 2 * head_dim_});
    return {both.narrow(2, 0, head_dim_), project(k_), project(v_),
            both.narrow(2, head_dim_, head_dim_)};
  }
  // Rope copies q and k, and v is copied here: backward keeps all of y for none of them.
  const at::Tensor y = nn::linear(x, qkv_, rows);
  const int64_t kv = num_kv_heads(), group = spec_.num_heads / spec_.num_kv_heads, q = kv * group;
  if (spec_.projections == Projections::kStacked) {
    const auto parts = y.view({tokens, -1, head_dim_}).split_with_sizes({q, kv, kv}, 1);
    return {parts[0], parts[1], parts[2].contiguous()};
  }
  const auto parts = y.view({tokens, kv, group + 2, head_dim_}).split_with_sizes({group, 1, 1}, 2);
  return {parts[0].reshape({tokens, q, head_dim_}), parts[1].squeeze(2),
          parts[2].squeeze(2).contiguous()};
}

at::Tensor Attention::forward(const at::Tensor& x, const Context& context) const {
  const nn::Rows& rows = context.rows;
  auto [q, k, v, gate] = heads(x, rows);
  nn::prefetch(o_);
  if (q_norm_.weight.defined()) {
    q = nn::rms_norm(q, q_norm_, rows);
    k = nn::rms_norm(k, k_norm_, rows);
  }
  std::tie(q, k) = nn::apply_rope(q, k, spec_.local_rope ? *context.local_rope : context.rope,
                                  rows.position_ids);
  const nn::AttentionOptions options{
      .scale = spec_.scale > 0 ? spec_.scale : 1.0 / std::sqrt(static_cast<double>(head_dim_)),
      .window = spec_.window,
      .deterministic = o_.exact,
      .sinks = sinks_,
      .softcap = spec_.softcap};
  at::Tensor mixed = context.kv ? context.kv->attend(context.layer, q, k, v, rows, options)
                                : nn::attention(q, k, v, rows, options, sinks_grad_);
  if (gate.defined()) mixed = nn::sigmoid_gate(mixed, gate);
  return nn::linear(mixed.reshape({x.size(0), -1}), o_, rows);
}

void Attention::prefetch() const { nn::prefetch(fused() ? qkv_ : q_); }

int64_t Attention::saved_bytes(const nn::Rows& rows) const {
  const int64_t kv = num_kv_heads() * head_dim_, q = o_.weight.size(1);
  int64_t row = 2 * q + 2 * kv;  // q, k, v and the output
  if (q_.needs_input() || k_.needs_input() || v_.needs_input() || qkv_.needs_input())
    row += o_.weight.size(0);
  if (q_norm_.weight.defined()) row += q + kv;
  if (spec_.output_gate) row += q + (o_.needs_input() ? q : 0);  // beside the queries; the result
  const int64_t size = o_.weight.element_size();
  const int64_t sums = std::max<int64_t>(size, 4) * (q / head_dim_);  // the log-sum-exp
  int64_t bytes = (row * size + sums) * rows.num_tokens();
  for (const nn::Linear* w : {&q_, &k_, &v_, &qkv_, &o_}) bytes += w->saved_bytes(rows);
  return bytes;
}

}  // namespace twinkle::model
