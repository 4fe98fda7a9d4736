// A layer: two blocks, each behind a norm, and with a sandwich in front of one. Which blocks, the
// spec says.
#pragma once
#include <memory>

#include "twinkle/model/blocks/block.h"
#include "twinkle/model/blocks/parts.h"

namespace twinkle::model {

struct Layer {
  Layer(const DecoderSpec& decoder, const LayerSpec& spec, Parts& parts);
  Layer(const Layer&) = delete;  // Parts point into it
  Layer& operator=(const Layer&) = delete;

  // The blocks' inputs are normed by the decoder, together with the sums that they are of.
  nn::RmsNorm mixer_norm, mlp_norm;
  // Norms of the blocks' outputs; undefined weight: none.
  nn::RmsNorm mixer_post_norm, mlp_post_norm;
  std::unique_ptr<Mixer> mixer;
  std::unique_ptr<Block> mlp;
};

}  // namespace twinkle::model
