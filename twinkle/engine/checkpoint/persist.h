// Writes a tenant to disk: a PEFT directory, or for a full-parameter tenant a Hugging Face model
// directory, and with it the training state (training.safetensors, trainer_state.json) when asked.
// The folder appears whole or not at all; the adapter's or model's files are those that peft and
// transformers read.
#pragma once
#include <filesystem>
#include <string_view>

#include "twinkle/engine/checkpoint/training_state.h"
#include "twinkle/engine/tenant.h"
#include "twinkle/lora/adapter.h"
#include "twinkle/model/decoder.h"

namespace twinkle::engine {

// The base model, which saved folders must fit. Immutable; any thread.
struct BaseModel {
  std::filesystem::path directory;         // where the weights came from
  Json config;                             // its config.json
  JsonObject arithmetic;                   // arithmetic_of this engine
  model::DecoderSpec spec;                 // as its config.json says
  at::ScalarType dtype = at::kFloat;       // of the weights here
  std::vector<NamedShape> weights;         // in the decoder's order
  std::vector<lora::LinearShape> linears;  // that adapters may target
};

// Checks that a save may replace `directory`, before the work and again when it is done. Writes
// nothing; any thread. `base`: the directory of the base model's weights. Error kInvalid, its text
// begins with `field`: it is empty, the system would refuse it (see check_writable), it is the base
// model's own, or it holds a file that is not a checkpoint's.
void check_target(const std::filesystem::path& directory, const std::filesystem::path& base,
                  std::string_view field = "engine: save: directory");

SaveResult save_tenant(const Save& operation, Tenant& tenant, model::Decoder& decoder,
                       lora::Pool& pool, const BaseModel& base);

}  // namespace twinkle::engine
