// The mixer of llama-like models: causal softmax attention with grouped key heads, rope, and,
// where the spec asks for it, a norm of every query and key head, sinks and a gate on the output.
// When it samples, keys and values go to the cache (kv_cache.h) and the past comes from there.
#pragma once
#include "twinkle/model/blocks/block.h"
#include "twinkle/model/blocks/parts.h"

namespace twinkle::model {

class Attention final : public Mixer {
 public:
  Attention(const DecoderSpec& decoder, const AttentionSpec& spec, Parts& parts);

  at::Tensor forward(const at::Tensor& x_TD, const Context& context) const override;
  void prefetch() const override;
  int64_t saved_bytes(const nn::Rows& rows) const override;
  StateSpec state() const override;

 private:
  struct Heads {
    at::Tensor q, k, v;    // [T, heads, head_dim], contiguous or not
    at::Tensor gate = {};  // as q; undefined: none
  };
  Heads heads(const at::Tensor& x_TD, const nn::Rows& rows) const;
  bool fused() const { return qkv_.weight.defined(); }
  int64_t num_kv_heads() const;

  // Either three or the one that holds their rows; it is never cut up, its output is.
  nn::Linear q_, k_, v_, qkv_, o_;
  nn::RmsNorm q_norm_, k_norm_;  // undefined weight: none
  at::Tensor sinks_;             // [heads] or undefined
  nn::WeightGrad* sinks_grad_ = nullptr;
  AttentionSpec spec_;
  int64_t head_dim_;
};

}  // namespace twinkle::model
