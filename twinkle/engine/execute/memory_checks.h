// Memory that an engine will take, checked before it begins. Bytes; Errors are kInvalid and name
// the option to lower.
#pragma once
#include <c10/core/Device.h>

#include <cstdint>

#include "twinkle/engine/options.h"

namespace twinkle::engine {

// Bytes that the process may use where tenants' state is; 0: no limit is derived from them.
int64_t memory_of_tenants(const EngineOptions& options);

// The sampler's cache is taken when the first prompt comes, and fills up much later.
void require_cache_fits(int64_t tokens, double bytes, at::Device device);
void require_states_fit(int64_t sequences, double bytes, double cache, at::Device device);
// Error: weights and cache exceed that share of the memory.
void require_share(double share, double weights, double cache, at::Device device);

}  // namespace twinkle::engine
