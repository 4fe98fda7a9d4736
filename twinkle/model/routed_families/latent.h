// Shared by the DeepSeeks with latent attention: how their config.json gives it.
#pragma once
#include "twinkle/model/family.h"

namespace twinkle::model {

// llama_like with latent attention in every layer, and YaRN's mscale in the scores' scale. Error
// kInvalid: a size is missing or impossible, a rope kind other than default and yarn, layers of
// which moe_layer_freq leaves out some.
DecoderSpec latent_like(const Json& config);

// That of deepseek_v2, whose first files had the model_type of the model before it.
DecoderSpec deepseek_v2_spec(const Json& config);

}  // namespace twinkle::model
