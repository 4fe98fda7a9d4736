// The tokens that end a reply. Knows no tensors.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "twinkle/base/json.h"

namespace twinkle {

// Those of `config` (config.json, or its text part), of generation_config.json and the tokenizer's
// eos_token: fine-tuning teaches the latter, which the configs of a base model need not name. Ids
// beyond the vocabulary end no text, since none of them is ever sampled: a small model may keep
// those of the tokenizer that its family has. `path`: the model's directory, or its one file.
// Error kInvalid: an eos_token_id is neither an integer nor a list of them.
std::vector<int32_t> read_eos(const std::filesystem::path& path, const Json& config,
                              int64_t vocab_size);

// The text of a generation_config.json with this list: a trained model ends its replies as its
// tokenizer does, which the base's list may lack.
std::string with_eos(const std::string& text, const std::vector<int32_t>& eos_ids);

// The text of a generation_config.json for a trained model whose base has none. It takes the place
// of `config`, so the other special tokens are there, too. Empty: `config` names all of eos_ids.
std::string generation_config(const Json& config, const std::vector<int32_t>& eos_ids);

}  // namespace twinkle
