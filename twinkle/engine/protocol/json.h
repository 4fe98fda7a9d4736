// Operations and results as JSON and back: {"step": {"tenant": "ann", "max_grad_norm": 1}}, the
// kind and its fields by name.
#pragma once
#include "twinkle/base/json.h"
#include "twinkle/engine/protocol/operation.h"
#include "twinkle/engine/protocol/result.h"

namespace twinkle::engine {

Json to_json(const Operation& operation);
Json to_json(const Result& result);
// Fields that are absent keep their default. Error kInvalid: another kind, an unknown field, a
// value of another type or out of range, with its place.
Operation operation_from_json(const Json& json);
Result result_from_json(const Json& json);

}  // namespace twinkle::engine
