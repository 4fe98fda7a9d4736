#include "twinkle/model/blocks/layer.h"

#include "twinkle/model/blocks/attention.h"
#include "twinkle/model/blocks/delta.h"
#include "twinkle/model/blocks/experts.h"
#include "twinkle/model/blocks/gated_mlp.h"
#include "twinkle/model/mixers/latent.h"

namespace twinkle::model {
namespace {

// One line each: the block that stands for a spec of this type.
struct MakeMixer {
  const DecoderSpec& decoder;
  Parts& parts;
  std::unique_ptr<Mixer> operator()(const AttentionSpec& spec) const {
    return std::make_unique<Attention>(decoder, spec, parts);
  }
  std::unique_ptr<Mixer> operator()(const DeltaSpec& spec) const {
    return std::make_unique<Delta>(decoder, spec, parts);
  }
  std::unique_ptr<Mixer> operator()(const LatentSpec& spec) const {
    return std::make_unique<Latent>(decoder, spec, parts);
  }
};

struct MakeMlp {
  const DecoderSpec& decoder;
  Parts& parts;
  std::unique_ptr<Block> operator()(const GatedMlpSpec& spec) const {
    return std::make_unique<GatedMlp>(decoder, spec, parts);
  }
  std::unique_ptr<Block> operator()(const ExpertsSpec& spec) const {
    return std::make_unique<RoutedExperts>(decoder, spec, parts);
  }
};

}  // namespace

Layer::Layer(const DecoderSpec& decoder, const LayerSpec& spec, Parts& parts) {
  const auto norm = [&](const char* name, nn::RmsNorm& into) {
    parts.norm(name, decoder.hidden_size, decoder.norm, into);
  };
  norm("input_layernorm", mixer_norm);
  mixer = std::visit(MakeMixer{decoder, parts}, spec.mixer);
  if (decoder.sandwich) norm("post_self_attn_layernorm", mixer_post_norm);
  norm("post_attention_layernorm", mlp_norm);
  mlp = std::visit(MakeMlp{decoder, parts}, spec.mlp);
  if (decoder.sandwich) norm("post_mlp_layernorm", mlp_post_norm);
}

}  // namespace twinkle::model
