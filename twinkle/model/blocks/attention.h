// The mixer of llama-like models: causal softmax attention with grouped key heads, rope, and,
// where the spec asks for it, a norm of every query and key head. When it samples, keys and values
// go to the cache (kv_cache.h) and the past comes from there.
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
  StateSpec state() const override { return {k_.weight.size(0) / head_dim_, head_dim_}; }

 private:
  nn::Linear q_, k_, v_, o_;
  nn::RmsNorm q_norm_, k_norm_;  // undefined weight: none
  int64_t head_dim_, window_;
};

}  // namespace twinkle::model
