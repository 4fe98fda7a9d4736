// A layer: two blocks, each behind a norm. Which blocks, the spec says.
#pragma once
#include <memory>

#include "twinkle/model/blocks/block.h"
#include "twinkle/model/blocks/parts.h"
#include "twinkle/model/spec.h"

namespace twinkle::model {

struct Layer {
  Layer(const DecoderSpec& spec, size_t index, Parts& parts);
  Layer(const Layer&) = delete;  // Parts point into it
  Layer& operator=(const Layer&) = delete;

  // The blocks' inputs are normed by the decoder, together with the sums that they are of.
  nn::RmsNorm mixer_norm, mlp_norm;
  std::unique_ptr<Block> mixer, mlp;
};

}  // namespace twinkle::model
