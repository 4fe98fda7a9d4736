#include "twinkle/model/blocks/attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "twinkle/nn/attention/attention.h"

namespace twinkle::model {

Attention::Attention(const DecoderSpec& decoder, const AttentionSpec& spec, Parts& parts)
    : head_dim_(spec.head_dim), window_(spec.window) {
  const int64_t d = decoder.hidden_size, q = spec.num_heads * head_dim_,
                kv = spec.num_kv_heads * head_dim_;
  parts.linear("self_attn.q_proj", {q, d, spec.qkv_bias}, q_);
  parts.linear("self_attn.k_proj", {kv, d, spec.qkv_bias}, k_);
  parts.linear("self_attn.v_proj", {kv, d, spec.qkv_bias}, v_);
  parts.linear("self_attn.o_proj", {d, q, spec.o_bias}, o_);
  if (!spec.qk_norm) return;
  parts.norm("self_attn.q_norm", head_dim_, decoder.norm_eps, q_norm_);
  parts.norm("self_attn.k_norm", head_dim_, decoder.norm_eps, k_norm_);
}

at::Tensor Attention::forward(const at::Tensor& x, const Context& context) const {
  const nn::Rows& rows = context.rows;
  const int64_t tokens = x.size(0);
  const auto project = [&](const nn::Linear& w) {
    return nn::linear(x, w, rows).view({tokens, -1, head_dim_});
  };
  at::Tensor q = project(q_), k = project(k_);
  const at::Tensor v = project(v_);
  nn::prefetch(o_);
  if (q_norm_.weight.defined()) {
    q = nn::rms_norm(q, q_norm_, rows);
    k = nn::rms_norm(k, k_norm_, rows);
  }
  std::tie(q, k) = nn::apply_rope(q, k, context.rope, rows.position_ids);
  const nn::AttentionOptions options{1.0 / std::sqrt(static_cast<double>(head_dim_)), window_,
                                     o_.exact};
  const at::Tensor mixed = context.kv ? context.kv->attend(context.layer, q, k, v, rows, options)
                                      : nn::attention(q, k, v, rows, options);
  return nn::linear(mixed.reshape({tokens, -1}), o_, rows);
}

void Attention::prefetch() const { nn::prefetch(q_); }

int64_t Attention::saved_bytes(const nn::Rows& rows) const {
  const int64_t q = q_.weight.size(0), kv = k_.weight.size(0);
  int64_t row = 2 * q + 2 * kv;  // q, k, v and the output
  if (q_.needs_input() || k_.needs_input() || v_.needs_input()) row += q_.weight.size(1);
  if (q_norm_.weight.defined()) row += q + kv;
  const int64_t size = q_.weight.element_size();
  const int64_t sums = std::max<int64_t>(size, 4) * (q / head_dim_);  // the log-sum-exp
  int64_t bytes = (row * size + sums) * rows.num_tokens();
  for (const nn::Linear* w : {&q_, &k_, &v_, &o_}) bytes += w->saved_bytes(rows);
  return bytes;
}

}  // namespace twinkle::model
