// The spec of a checkpoint's config, whose errors name the checkpoint.
#pragma once
#include <filesystem>

#include "twinkle/model/family.h"

namespace twinkle::model {

// read_spec of the config of `checkpoint`: a folder, or one of its files. Errors: as read_spec's,
// with the file and what can be done.
DecoderSpec spec_of(const Json& config, const std::filesystem::path& checkpoint,
                    bool value_head = false);

}  // namespace twinkle::model
