// Limits of a tenant: sessions, samplers, runs, adapters, bytes on disk. All of it is counted
// from the service's state. Errors kInvalid: the limit, what there is, and the remedy.
#pragma once
#include <cstdint>
#include <string>

#include "twinkle/serving/core/core.h"

namespace twinkle::server::core {

void require_session(const Core& core, const std::string& owner);
void require_sampler(const Core& core, const std::string& owner);
// One run more, which fits into the engine's memory for adapters.
void require_run(Core& core, const Run& run);
// One save more of the run: `named`: a checkpoint, else a version for samplers.
void require_save(Core& core, const Run& run, bool optimizer, bool named);

// Runs that count: neither finished nor lost, nor silent for too long.
int64_t num_runs(const Core& core, const std::string& owner);
// Bytes of the disk that a save of the run takes, at most.
int64_t most_bytes(const ModelFacts& model, const Run& run, bool optimizer);

// Error kInvalid: no folder can have this name.
void require_name(const std::string& name);
// The checkpoint that a save of this name makes, which has `kind` "weights" or "sampler_weights".
Checkpoint new_checkpoint(const Core& core, const Run& run, int64_t seq_id, const std::string& kind,
                          const std::string& name);
// By a checkpoint, or by a save that has not ended and may become one.
bool is_taken(const Core& core, const Run& run, const std::string& path);

}  // namespace twinkle::server::core
