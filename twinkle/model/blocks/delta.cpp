#include "twinkle/model/blocks/delta.h"

#include <ATen/ATen.h>

#include "twinkle/base/error.h"

namespace twinkle::model {

Delta::Delta(const DecoderSpec& decoder, const DeltaSpec& spec, Parts& parts)
    : by_key_head_(spec.by_key_head) {
  rule_.shape = {.key_heads = spec.num_key_heads,
                 .value_heads = spec.num_value_heads,
                 .key_dim = spec.key_dim,
                 .value_dim = spec.value_dim};
  rule_.eps = decoder.norm.eps;
  const int64_t d = decoder.hidden_size, channels = rule_.shape.channels(),
                heads = spec.num_value_heads, values = heads * spec.value_dim;
  if (by_key_head_) {
    parts.linear("linear_attn.in_proj_qkvz", {channels + values, d}, qkv_);
    parts.linear("linear_attn.in_proj_ba", {2 * heads, d}, b_);
  } else {
    parts.linear("linear_attn.in_proj_qkv", {channels, d}, qkv_);
    parts.linear("linear_attn.in_proj_z", {values, d}, z_);
    parts.linear("linear_attn.in_proj_b", {heads, d}, b_);
    parts.linear("linear_attn.in_proj_a", {heads, d}, a_);
  }
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

nn::DeltaProjections Delta::project(const at::Tensor& x, const nn::Rows& rows) const {
  if (!by_key_head_) {
    return {.qkv = nn::linear(x, qkv_, rows),
            .z = nn::linear(x, z_, rows),
            .a = nn::linear(x, a_, rows),
            .b = nn::linear(x, b_, rows)};
  }
  const kernels::DeltaShape& s = rule_.shape;
  const int64_t t = x.size(0), key = s.key_dim, value = s.group() * s.value_dim;
  const at::Tensor qkvz = nn::linear(x, qkv_, rows).view({t, s.key_heads, 2 * key + 2 * value});
  const at::Tensor ba = nn::linear(x, b_, rows).view({t, s.key_heads, 2 * s.group()});
  const auto part = [](const at::Tensor& of, int64_t begin, int64_t size) {
    return of.narrow(2, begin, size).flatten(1).contiguous();
  };
  return {.qkv = at::cat({part(qkvz, 0, key), part(qkvz, key, key), part(qkvz, 2 * key, value)}, 1),
          .z = part(qkvz, 2 * key + value, value),
          .a = part(ba, s.group(), s.group()),
          .b = part(ba, 0, s.group())};
}

at::Tensor Delta::forward(const at::Tensor& x, const Context& context) const {
  const nn::Rows& rows = context.rows;
  const nn::DeltaProjections in = project(x, rows);
  nn::prefetch(out_);
  const at::Tensor mixed = context.kv
                               ? nn::gated_delta(in, rule_, context.kv->states(context.layer))
                               : nn::gated_delta(in, rule_, rows);
  return nn::linear(mixed, out_, rows);
}

void Delta::prefetch() const { nn::prefetch(qkv_); }

int64_t Delta::saved_bytes(const nn::Rows& rows) const {
  bool reads_x = false;
  int64_t bytes = rule_.saved_bytes(rows) + out_.saved_bytes(rows);
  for (const nn::Linear* w : {&qkv_, &z_, &b_, &a_}) {
    if (!w->weight.defined()) continue;
    reads_x = reads_x || w->needs_input();
    bytes += w->saved_bytes(rows);
  }
  int64_t row = reads_x ? qkv_.weight.size(1) : 0;
  if (out_.needs_input()) row += out_.weight.size(1);
  return bytes + row * out_.weight.element_size() * rows.num_tokens();
}

StateSpec Delta::state() const {
  const at::ScalarType dtype = rule_.norm.scalar_type();
  return {.num_bytes = kernels::DeltaState::num_bytes(rule_.shape, dtype),
          .closed_bytes = kernels::DeltaState::closed_bytes(rule_.shape, dtype)};
}

}  // namespace twinkle::model
