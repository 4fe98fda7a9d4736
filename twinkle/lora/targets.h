// Names of the modules that an adapter targets.
#pragma once
#include <span>

#include "twinkle/io/peft/peft.h"
#include "twinkle/lora/adapter.h"

namespace twinkle::lora {

// The config with "all-linear" replaced by the names of the modules that it stands for here, as
// peft writes it and as an Adapter's config() has it.
PeftConfig with_named_targets(PeftConfig config, std::span<const LinearShape> linears);

// True if such an adapter works on the model's head.
bool targets_head(const PeftConfig& config);

}  // namespace twinkle::lora
