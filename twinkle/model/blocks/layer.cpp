#include "twinkle/model/blocks/layer.h"

#include "twinkle/model/blocks/attention.h"
#include "twinkle/model/blocks/gated_mlp.h"

namespace twinkle::model {

Layer::Layer(const DecoderSpec& decoder, const LayerSpec& spec, Parts& parts) {
  parts.norm("input_layernorm", decoder.hidden_size, decoder.norm_eps, mixer_norm);
  mixer = std::make_unique<Attention>(decoder, spec.mixer, parts);
  parts.norm("post_attention_layernorm", decoder.hidden_size, decoder.norm_eps, mlp_norm);
  mlp = std::make_unique<GatedMlp>(decoder, spec.mlp, parts);
}

}  // namespace twinkle::model
