// What of a tenant goes to disk and comes back: a PEFT directory, or for a full-parameter tenant a
// Hugging Face model directory; with the training state beside it (training.safetensors,
// trainer_state.json) when asked. The folder appears whole or not at all; the adapter's or model's
// files are those that peft and transformers read.
#pragma once
#include <filesystem>

#include "twinkle/engine/tenant.h"
#include "twinkle/model/decoder.h"

namespace twinkle::engine {

struct BaseModel {
  std::filesystem::path directory;  // where the weights came from
  Json config;                      // its config.json
};

SaveResult save_tenant(const Save& operation, Tenant& tenant, model::Decoder& decoder,
                       lora::Pool& pool, const BaseModel& base);

// Replaces the tenant's weights, and its training state when asked (dropped otherwise). Everything
// is read and checked before anything changes. Error kNotFound: no such checkpoint; kInvalid: of
// another model, rank or mode.
LoadResult load_tenant(const Load& operation, Tenant& tenant, model::Decoder& decoder);

}  // namespace twinkle::engine
