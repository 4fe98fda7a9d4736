// What a Load, and a Create from a directory, take from files: read and checked into host memory on
// any thread, so that the engine's thread only copies. The folder's files are those that
// persist.h's save_tenant writes, or those of peft and transformers.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "twinkle/engine/checkpoint/persist.h"
#include "twinkle/engine/checkpoint/training_state.h"
#include "twinkle/engine/operation.h"
#include "twinkle/engine/tenant.h"
#include "twinkle/lora/adapter.h"

namespace twinkle::engine {

struct Loaded {
  std::optional<lora::SavedAdapter> adapter;  // of an adapter's tenant
  std::vector<at::Tensor> weights;            // else, in the order of the model's
  std::optional<TrainingState> training;      // when it was asked for

  int64_t num_bytes() const;
};

// Everything that can be checked without the tenant is. Error kNotFound: no such checkpoint;
// kInvalid: of another model, damaged, a state that no training leaves; or, with `exact`, saved
// where the arithmetic was another.
// `reserve`: as of lora::read_adapter, for each part of an adapter's state.
Loaded read_checkpoint(const Load& operation, Mode mode, const BaseModel& base,
                       const std::function<void(int64_t)>& reserve = {});

// Replaces the tenant's weights, and its training state when it was read (dropped otherwise). What
// was read for a tenant of its mode. Error kInvalid: of another rank or scale; nothing changes
// then.
LoadResult load_tenant(Loaded loaded, Tenant& tenant, model::Decoder& decoder);

}  // namespace twinkle::engine
