// The mixer of Qwen3.5's and Qwen3-Next's linear layers: the gated delta rule over convolved
// queries, keys and values (nn/delta). When it samples it keeps a state of fixed size, whatever the
// sequence's length.
#pragma once
#include "twinkle/model/blocks/block.h"
#include "twinkle/model/blocks/parts.h"
#include "twinkle/nn/delta/delta.h"

namespace twinkle::model {

class Delta final : public Mixer {
 public:
  // Error kInvalid: weights on a GPU.
  Delta(const DecoderSpec& decoder, const DeltaSpec& spec, Parts& parts);

  at::Tensor forward(const at::Tensor& x_TD, const Context& context) const override;
  void prefetch() const override;
  int64_t saved_bytes(const nn::Rows& rows) const override;
  StateSpec state() const override;

 private:
  nn::DeltaProjections project(const at::Tensor& x_TD, const nn::Rows& rows) const;

  bool by_key_head_;
  nn::Linear qkv_, z_, b_, a_, out_;  // by key head: qkv_ has z's rows, b_ has a's
  nn::GatedDelta rule_;
};

}  // namespace twinkle::model
