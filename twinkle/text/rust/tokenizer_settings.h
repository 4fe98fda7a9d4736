// Changes to tokenizer.json by the configuration files (tokenizer_config.json,
// special_tokens_map.json, added_tokens.json), as transformers 5.23's PreTrainedTokenizerFast reads
// them: tokens that are added, and names of tokens. add_bos_token and add_eos_token are not read
// where there is a tokenizer.json, whose post-processor says what stands around a text. Values.
#pragma once
#include <filesystem>

#include "twinkle/base/json.h"

namespace twinkle::text {

struct TokenizerSettings {
  // "bos_token" -> "<s>", also names that only this model has.
  JsonObject special_tokens;
  // Tokens that tokenizer.json may lack, in the order in which they get ids. One with `file_id` is
  // not added where tokenizer.json has another of that id; one with `has_flags` is added again
  // where tokenizer.json has it with other flags.
  JsonArray added;
  // Values of add_prefix_space and do_lower_case that the tokenizer's class puts in the place of
  // tokenizer.json's, which must therefore be the same.
  JsonObject applied;
};

// Error kInvalid: a file that is no JSON object, a value of the wrong kind, or one that would
// change ids and that Twinkle does not have, by name.
TokenizerSettings tokenizer_settings(const std::filesystem::path& directory);

}  // namespace twinkle::text
