// What ReadWeights shows of a tenant, and what ReplaceWeights does to one. The engine's thread.
#pragma once
#include <vector>

#include "twinkle/engine/tenant.h"
#include "twinkle/engine/weights/shelf.h"

namespace twinkle::engine {

WeightsView view_of(Tenant& tenant, model::Decoder& decoder, const lora::Pool& pool);

// Of an adapter's tenant its factors, whose optimizer and gradients are forgotten; of a frozen one
// the base model's weights. Error kInvalid: a tenant that trains all weights; other names, shapes
// or types than the tenant's, of which the first is named. Nothing changes then.
void replace_weights(const std::vector<Weight>& weights, Tenant& tenant, model::Decoder& decoder,
                     lora::Pool& pool);

}  // namespace twinkle::engine
