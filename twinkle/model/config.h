// The spec of a checkpoint's config, whose errors name the checkpoint.
#pragma once
#include <filesystem>

#include "twinkle/io/checkpoint.h"
#include "twinkle/model/family.h"

namespace twinkle::model {

// read_spec of the config of `checkpoint`: a folder, or one of its files. Errors: as read_spec's,
// with the file and what can be done.
DecoderSpec spec_of(const Json& config, const std::filesystem::path& checkpoint,
                    bool value_head = false);

// The same of an open checkpoint, with the names that its tensors have (Layout::settle). Error
// kInvalid, besides: its embedding has the name that another class of the family gives it, text
// alone or inside a model with pictures, than its config.json's.
DecoderSpec spec_of(const Checkpoint& checkpoint, bool value_head = false);

}  // namespace twinkle::model
