#include "twinkle/model/mixers/latent.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "twinkle/base/error.h"
#include "twinkle/nn/attention/attention.h"
#include "twinkle/nn/attention/latent.h"

namespace twinkle::model {
namespace {

constexpr NormSpec kNorm{.eps = 1e-6};  // whatever rms_norm_eps is

}  // namespace

Latent::Latent(const DecoderSpec& decoder, const LatentSpec& spec, Parts& parts) : spec_(spec) {
  const int64_t d = decoder.hidden_size, h = spec.num_heads, r = spec.kv_rank,
                query = h * (spec.nope_dim + spec.rope_dim);
  if (spec.q_rank == 0) {
    parts.linear("self_attn.q_proj", {query, d}, q_);
  } else {
    parts.linear("self_attn.q_a_proj", {spec.q_rank, d, spec.bias}, q_a_);
    parts.norm("self_attn.q_a_layernorm", spec.q_rank, kNorm, q_norm_);
    parts.linear("self_attn.q_b_proj", {query, spec.q_rank}, q_b_);
  }
  parts.linear("self_attn.kv_a_proj_with_mqa", {key_dim(), d, spec.bias}, kv_a_);
  parts.norm("self_attn.kv_a_layernorm", r, kNorm, kv_norm_);
  parts.linear("self_attn.kv_b_proj", {h * (spec.nope_dim + spec.value_dim), r}, kv_b_, false);
  parts.linear("self_attn.o_proj", {d, h * spec.value_dim, spec.bias}, o_);
  require(o_.weight.is_cpu(), Code::kInvalid, "model: device is ", o_.weight.device(),
          ", but latent attention (", decoder.family,
          ") runs on the CPU only in this version; set the device to cpu");
}

int64_t Latent::num_heads() const { return o_.weight.size(1) / spec_.value_dim; }

StateSpec Latent::state() const { return {.num_heads = 1, .head_dim = key_dim(), .latent = true}; }

at::Tensor Latent::queries(const at::Tensor& x, const nn::Rows& rows) const {
  const at::Tensor q =
      spec_.q_rank == 0
          ? nn::linear(x, q_, rows)
          : nn::linear(nn::rms_norm(nn::linear(x, q_a_, rows), q_norm_, rows), q_b_, rows);
  return q.view({x.size(0), num_heads(), spec_.nope_dim + spec_.rope_dim});
}

at::Tensor Latent::forward(const at::Tensor& x, const Context& context) const {
  const nn::Rows& rows = context.rows;
  const int64_t r = spec_.kv_rank, n = spec_.nope_dim, rotated = spec_.rope_dim;
  const nn::AbsorbedKv kv_b(kv_b_, num_heads(), n, rows);
  const at::Tensor q = queries(x, rows), kv = nn::linear(x, kv_a_, rows);
  const auto [q_rope, k_rope] =
      nn::apply_rope(q.narrow(2, n, rotated), kv.narrow(1, r, rotated).unsqueeze(1), context.rope,
                     rows.position_ids);
  const at::Tensor latent = nn::rms_norm(kv.narrow(1, 0, r), kv_norm_, rows).unsqueeze(1);
  const at::Tensor query = at::cat({kv_b.queries(q.narrow(2, 0, n)), q_rope}, 2),
                   key = at::cat({latent, k_rope}, 2);
  nn::prefetch(o_);
  // The result's last part is the mixed rotated parts, which nothing needs.
  const nn::AttentionOptions options{.scale = spec_.scale, .deterministic = o_.exact};
  const at::Tensor mixed = context.kv
                               ? context.kv->attend(context.layer, query, key, key, rows, options)
                               : nn::attention(query, key, key, rows, options);
  return nn::linear(kv_b.values(mixed.narrow(2, 0, r)).flatten(1), o_, rows);
}

void Latent::prefetch() const { nn::prefetch(spec_.q_rank == 0 ? q_ : q_a_); }

int64_t Latent::saved_bytes(const nn::Rows& rows) const {
  const int64_t h = num_heads();
  int64_t row = 2 * h * key_dim() + 2 * key_dim();  // query, output; key; what its norm reads
  if (q_.needs_input() || q_a_.needs_input() || kv_a_.needs_input()) row += o_.weight.size(0);
  if (spec_.q_rank > 0) row += spec_.q_rank * (q_b_.needs_input() ? 2 : 1);
  if (kv_b_.needs_input()) row += h * (spec_.nope_dim + spec_.rope_dim);
  if (o_.needs_input()) row += h * spec_.value_dim;
  const int64_t size = o_.weight.element_size();
  const int64_t sums = std::max<int64_t>(size, 4) * h;  // the log-sum-exp
  int64_t bytes = (row * size + sums) * rows.num_tokens();
  for (const nn::Linear* w : {&q_, &q_a_, &q_b_, &kv_a_, &o_}) bytes += w->saved_bytes(rows);
  return bytes + nn::AbsorbedKv::saved_bytes(kv_b_, rows);
}

int64_t Latent::backward_bytes(const nn::Rows& rows) const {
  return nn::AbsorbedKv::backward_bytes(kv_b_, rows);
}

}  // namespace twinkle::model
