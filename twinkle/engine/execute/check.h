// What can be said about an operation before it is queued: sizes, ids, labels and numbers against
// the model. Any thread.
#pragma once
#include <vector>

#include "twinkle/engine/operation.h"
#include "twinkle/model/spec.h"

namespace twinkle::engine {

// Error kInvalid: what is wrong, and where.
void check(const Operation& operation, const model::DecoderSpec& spec);
void check_sequences(const std::vector<Sequence>& sequences, const model::DecoderSpec& spec);
// A batch of a ForwardBackward that scores nothing.
void check_labels(const std::vector<Sequence>& sequences);

}  // namespace twinkle::engine
