#include "twinkle/model/blocks/gated_mlp.h"

#include <ATen/ATen.h>

#include "twinkle/nn/mlp.h"

namespace twinkle::model {

GatedMlp::GatedMlp(const DecoderSpec& decoder, const GatedMlpSpec& spec, Parts& parts) {
  const int64_t d = decoder.hidden_size, inner = spec.intermediate_size;
  parts.linear("mlp.gate_proj", {inner, d, spec.bias}, gate_);
  parts.linear("mlp.up_proj", {inner, d, spec.bias}, up_);
  parts.linear("mlp.down_proj", {d, inner, spec.bias}, down_);
}

at::Tensor GatedMlp::forward(const at::Tensor& x, const Context& context) const {
  const at::Tensor gate = nn::linear(x, gate_, context.rows);
  const at::Tensor up = nn::linear(x, up_, context.rows);
  nn::prefetch(down_);
  return nn::swiglu_linear(gate, up, down_, context.rows);
}

void GatedMlp::prefetch() const { nn::prefetch(gate_); }

int64_t GatedMlp::saved_bytes(const nn::Rows& rows) const {
  int64_t row = gate_.weight.size(0) + up_.weight.size(0);
  if (gate_.needs_input() || up_.needs_input()) row += gate_.weight.size(1);
  int64_t bytes = row * gate_.weight.element_size() * rows.num_tokens();
  for (const nn::Linear* w : {&gate_, &up_, &down_}) bytes += w->saved_bytes(rows);
  return bytes;
}

}  // namespace twinkle::model
