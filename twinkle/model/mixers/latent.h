// The mixer of DeepSeek from V2 on: latent attention (DeepSeek-V2, section 2.1) in its absorbed
// form (nn/attention/latent.h), in which all heads see one key and value of a token, its latent and
// its rotated part. That is what the cache keeps.
#pragma once
#include "twinkle/model/blocks/block.h"
#include "twinkle/model/blocks/parts.h"

namespace twinkle::model {

class Latent final : public Mixer {
 public:
  // Error kInvalid: weights on a GPU.
  Latent(const DecoderSpec& decoder, const LatentSpec& spec, Parts& parts);

  at::Tensor forward(const at::Tensor& x_TD, const Context& context) const override;
  void prefetch() const override;
  int64_t saved_bytes(const nn::Rows& rows) const override;
  int64_t backward_bytes(const nn::Rows& rows) const override;
  StateSpec state() const override;

 private:
  at::Tensor queries(const at::Tensor& x_TD, const nn::Rows& rows) const;
  int64_t num_heads() const;
  int64_t key_dim() const { return spec_.kv_rank + spec_.rope_dim; }

  nn::Linear q_, q_a_, q_b_, kv_a_, kv_b_, o_;  // q_, or the two behind it
  nn::RmsNorm q_norm_, kv_norm_;
  LatentSpec spec_;
};

}  // namespace twinkle::model
