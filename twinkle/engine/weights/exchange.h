// ReadWeights and ReplaceWeights, for one tenant. The engine's thread.
#pragma once
#include <vector>

#include "twinkle/engine/tenant.h"
#include "twinkle/engine/weights/shelf.h"
#include "twinkle/parallel/shards.h"

namespace twinkle::engine {

// The base model's weights on this rank.
struct BaseWeights {
  model::Decoder& decoder;
  parallel::Shards* shards;  // null: this rank has all of them
};

WeightsView view_of(Tenant& tenant, const BaseWeights& base, const lora::Pool& pool);

// An adapter loses its optimizer and gradients. Whole weights of a base on the CPU give
// their memory, the others are copied. Error kInvalid: a tenant that trains all weights; other
// names, shapes or types, of which the first is named. Nothing changes then.
void replace_weights(const NewWeights& weights, Tenant& tenant, const BaseWeights& base,
                     lora::Pool& pool);

}  // namespace twinkle::engine
