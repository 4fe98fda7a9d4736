#include "twinkle/model/blocks/layer.h"

#include "twinkle/model/blocks/attention.h"
#include "twinkle/model/blocks/gated_mlp.h"

namespace twinkle::model {

Layer::Layer(const DecoderSpec& spec, size_t index, Parts& parts) {
  parts.norm("input_layernorm", spec.hidden_size, spec.norm_eps, mixer_norm);
  mixer = std::make_unique<Attention>(spec, index, parts);
  parts.norm("post_attention_layernorm", spec.hidden_size, spec.norm_eps, mlp_norm);
  mlp = std::make_unique<GatedMlp>(spec, parts);
}

}  // namespace twinkle::model
