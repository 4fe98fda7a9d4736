// Checks of an operation before it is queued: sizes, ids, labels and numbers against the model, and
// the memory that it may take; and of a save's folder. Any thread.
#pragma once
#include <filesystem>
#include <vector>

#include "twinkle/engine/protocol/operation.h"
#include "twinkle/loss/loss.h"
#include "twinkle/model/spec.h"

namespace twinkle::engine {

// Asks nothing of the disk. Error kInvalid: names the value and its place.
void check(const Operation& operation, const model::DecoderSpec& spec);
// check_target of a Save, which asks the disk; nothing of others.
void check_folder(const Operation& operation, const std::filesystem::path& base);
// As Executor::max_result_bytes. An Inspect's is not known.
int64_t max_result_bytes(const Operation& operation, const model::DecoderSpec& spec, bool streams);
// loss: says which extras are one number a sequence; null: none.
void check_sequences(const std::vector<Example>& sequences, const model::DecoderSpec& spec,
                     const loss::Loss* loss = nullptr);

}  // namespace twinkle::engine
