#include "twinkle/model/blocks/gated_mlp.h"

#include <ATen/ATen.h>

#include "twinkle/base/error.h"

namespace twinkle::model {

GatedMlp::GatedMlp(const DecoderSpec& decoder, const GatedMlpSpec& spec, Parts& parts)
    : activation_(spec.activation) {
  const int64_t d = decoder.hidden_size, inner = spec.intermediate_size;
  if (spec.fused) {
    parts.linear("mlp.gate_up_proj", {2 * inner, d, spec.bias}, gate_up_);
  } else {
    parts.linear("mlp.gate_proj", {inner, d, spec.bias}, gate_);
    parts.linear("mlp.up_proj", {inner, d, spec.bias}, up_);
  }
  parts.linear("mlp.down_proj", {d, inner, spec.bias}, down_);
  require(activation_ == nn::Activation::kSilu || down_.weight.is_cpu(), Code::kInvalid,
          "model: device is ", down_.weight.device(), ", but an MLP with gelu (", decoder.family,
          ") runs on the CPU only in this version; set the device to cpu");
}

at::Tensor GatedMlp::forward(const at::Tensor& x, const Context& context) const {
  if (gate_up_.weight.defined()) {
    const at::Tensor both = nn::linear(x, gate_up_, context.rows);
    nn::prefetch(down_);
    const auto parts = both.chunk(2, 1);
    return nn::swiglu_linear(parts[0], parts[1], down_, context.rows, activation_);
  }
  const at::Tensor gate = nn::linear(x, gate_, context.rows);
  const at::Tensor up = nn::linear(x, up_, context.rows);
  nn::prefetch(down_);
  return nn::swiglu_linear(gate, up, down_, context.rows, activation_);
}

void GatedMlp::prefetch() const { nn::prefetch(gate_up_.weight.defined() ? gate_up_ : gate_); }

int64_t GatedMlp::saved_bytes(const nn::Rows& rows) const {
  int64_t row = 2 * down_.weight.size(1);
  if (gate_.needs_input() || up_.needs_input() || gate_up_.needs_input())
    row += down_.weight.size(0);
  int64_t bytes = row * down_.weight.element_size() * rows.num_tokens();
  for (const nn::Linear* w : {&gate_, &up_, &gate_up_, &down_}) bytes += w->saved_bytes(rows);
  return bytes;
}

}  // namespace twinkle::model
