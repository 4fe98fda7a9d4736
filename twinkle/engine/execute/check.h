// What can be said about an operation before it is queued: sizes, ids, labels and numbers against
// the model, and where a save is to go. Any thread.
#pragma once
#include <filesystem>
#include <vector>

#include "twinkle/engine/operation.h"
#include "twinkle/model/spec.h"

namespace twinkle::engine {

// `base`: where the model's weights came from. Error kInvalid: what is wrong, and where.
void check(const Operation& operation, const model::DecoderSpec& spec,
           const std::filesystem::path& base);
// The most memory that its result can take, as far as its fields say: an Inspect's is not known.
int64_t max_result_bytes(const Operation& operation, const model::DecoderSpec& spec);
void check_sequences(const std::vector<Example>& sequences, const model::DecoderSpec& spec);

}  // namespace twinkle::engine
