// The MLP of llama-like models: down(silu(gate x) * up x) (Shazeer 2020, SwiGLU), or with gelu in
// place of silu.
#pragma once
#include "twinkle/model/blocks/block.h"
#include "twinkle/model/blocks/parts.h"

namespace twinkle::model {

class GatedMlp final : public Block {
 public:
  GatedMlp(const DecoderSpec& decoder, const GatedMlpSpec& spec, Parts& parts);

  at::Tensor forward(const at::Tensor& x_TD, const Context& context) const override;
  void prefetch() const override;
  int64_t saved_bytes(const nn::Rows& rows) const override;

 private:
  nn::Linear gate_, up_, gate_up_, down_;  // either the first two, or the one of both's rows
  nn::Activation activation_;
};

}  // namespace twinkle::model
