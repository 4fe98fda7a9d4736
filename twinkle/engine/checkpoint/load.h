// Reads the files of a Load, of a Create from a directory and of a full-parameter tenant's Delete
// into host memory and checks them, on any thread, so that the engine's thread only copies. A
// checkpoint's files are those that persist.h's save_tenant writes, or those of peft and
// transformers.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "twinkle/engine/checkpoint/persist.h"
#include "twinkle/engine/checkpoint/training_state.h"
#include "twinkle/engine/protocol/operation.h"
#include "twinkle/engine/protocol/result.h"
#include "twinkle/engine/tenant.h"
#include "twinkle/lora/adapter.h"

namespace twinkle::engine {

struct Loaded {
  std::optional<lora::SavedAdapter> adapter;  // for an adapter's tenant
  // Weights of a full-parameter tenant, in the model's order; of several ranks, this one's runs of
  // them.
  std::vector<at::Tensor> weights;
  std::optional<TrainingState> training;  // when it was asked for
};

int64_t num_bytes(const Loaded& loaded);  // bytes of all its tensors

// The tenant that a checkpoint must fit.
struct TenantShape {
  Mode mode = Mode::kFull;
  PeftConfig adapter = {};  // for kLora

  bool operator==(const TenantShape&) const = default;
};
// The config of a Create with lora_json. Error kInvalid: as of peft_config.
PeftConfig config_of(const Create& operation);

// lora::read_adapter for this base model.
lora::SavedAdapter read_adapter(const std::filesystem::path& directory, const BaseModel& base,
                                const std::function<void(int64_t)>& reserve = {},
                                const PeftConfig* target = nullptr);

// Names, shapes, rank and scale are compared with the tenant's before any tensor is read. Error
// kNotFound: no such checkpoint; kInvalid: of another model, rank or scale, damaged, a state that
// no training leaves, or of another save than the weights; or, with `exact`, saved where the
// arithmetic was another. `reserve`: as of lora::read_adapter, for each part of the state.
Loaded read_checkpoint(const Load& operation, const TenantShape& tenant, const BaseModel& base,
                       const std::function<void(int64_t)>& reserve = {});

// The base model's own weights, which the Delete of a full-parameter tenant puts back. Error as of
// Checkpoint and Decoder, with the remedy.
Loaded read_base(const Delete& operation, const BaseModel& base);

// Replaces the tenant's weights, and its training state when it was read (dropped otherwise), by
// what was read for a tenant of its mode. Error kInvalid: of another rank or scale; nothing changes
// then.
LoadResult load_tenant(Loaded loaded, Tenant& tenant, model::Decoder& decoder);

}  // namespace twinkle::engine
