// Shared by GLM-4 (GLM team 2024) and its kin: llama with interleaved rope over a share of each
// head, biases on q, k and v, and one linear for gate and up.
#pragma once
#include "twinkle/model/family.h"

namespace twinkle::model {

DecoderSpec glm_like(const Json& config);

}  // namespace twinkle::model
