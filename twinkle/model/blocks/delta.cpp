#include "twinkle/model/blocks/delta.h"

#include <ATen/ATen.h>

#include "twinkle/base/error.h"

namespace twinkle::model {

Delta::Delta(const DecoderSpec& decoder, const DeltaSpec& spec, Parts& parts) {
  rule_.shape = {.key_heads = spec.num_key_heads,
                 .value_heads = spec.num_value_heads,
                 .key_dim = spec.key_dim,
                 .value_dim = spec.value_dim};
  rule_.eps = decoder.norm.eps;
  const int64_t d = decoder.hidden_size, channels = rule_.shape.channels(),
                heads = spec.num_value_heads, values = heads * spec.value_dim;
  parts.linear("linear_attn.in_proj_qkv", {channels, d}, qkv_);
  parts.linear("linear_attn.in_proj_z", {values, d}, z_);
  parts.linear("linear_attn.in_proj_b", {heads, d}, b_);
  parts.linear("linear_attn.in_proj_a", {heads, d}, a_);
  parts.weight("linear_attn.conv1d.weight", {channels, 1, kernels::kConvTaps}, true, rule_.conv,
               rule_.conv_grad);
  parts.weight("linear_attn.A_log", {heads}, false, rule_.a_log, rule_.a_log_grad);
  parts.weight("linear_attn.dt_bias", {heads}, false, rule_.dt_bias, rule_.dt_bias_grad);
  parts.weight("linear_attn.norm.weight", {spec.value_dim}, false, rule_.norm, rule_.norm_grad);
  parts.linear("linear_attn.out_proj", {d, values}, out_);
  require(rule_.norm.is_cpu(), Code::kInvalid, "model: device is ", rule_.norm.device(),
          ", but linear attention (", decoder.family,
          ") runs on the CPU only in this version; set the device to cpu");
}

at::Tensor Delta::forward(const at::Tensor& x, const Context& context) const {
  const nn::Rows& rows = context.rows;
  const nn::DeltaProjections in{.qkv = nn::linear(x, qkv_, rows),
                                .z = nn::linear(x, z_, rows),
                                .a = nn::linear(x, a_, rows),
                                .b = nn::linear(x, b_, rows)};
  nn::prefetch(out_);
  const at::Tensor mixed = context.kv
                               ? nn::gated_delta(in, rule_, context.kv->states(context.layer))
                               : nn::gated_delta(in, rule_, rows);
  return nn::linear(mixed, out_, rows);
}

void Delta::prefetch() const { nn::prefetch(qkv_); }

int64_t Delta::saved_bytes(const nn::Rows& rows) const {
  int64_t row = 0;
  if (qkv_.needs_input() || z_.needs_input() || b_.needs_input() || a_.needs_input())
    row += qkv_.weight.size(1);
  if (out_.needs_input()) row += out_.weight.size(1);
  int64_t bytes = row * out_.weight.element_size() * rows.num_tokens() + rule_.saved_bytes(rows);
  for (const nn::Linear* w : {&qkv_, &z_, &b_, &a_, &out_}) bytes += w->saved_bytes(rows);
  return bytes;
}

StateSpec Delta::state() const {
  const at::ScalarType dtype = rule_.norm.scalar_type();
  return {.num_bytes = kernels::DeltaState::num_bytes(rule_.shape, dtype),
          .closed_bytes = kernels::DeltaState::closed_bytes(rule_.shape, dtype)};
}

}  // namespace twinkle::model
