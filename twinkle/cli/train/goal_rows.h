// Rows of the objectives that learn from pairs of replies or from rewards; rows.h has those of
// supervised fine-tuning.
#pragma once
#include <cstdint>
#include <string>

#include "twinkle/cli/train/training.h"
#include "twinkle/data/dataset.h"
#include "twinkle/text/template.h"

namespace twinkle::cli {

// The two chats of an encoded pair.
inline constexpr const char *kChosen = "positive", *kRejected = "negative";

// Pairs: rows of a form of preferences (docs/training.md), or of two chats under the names above,
// which the preprocessor may make. Error kInvalid, with file and line: another row, a chat that
// cannot be encoded, without a reply, or of more than max_length tokens.
data::Dataset preference_rows(const std::string& file, const TrainingFiles& files,
                              const text::Template& tmpl, int64_t max_length);

// Prompts, encoded up to where the reply begins: rows of `messages` that end with the user's turn,
// or of `prompt`, a text. Errors likewise.
data::Dataset prompt_rows(const std::string& file, const TrainingFiles& files,
                          const text::Template& tmpl, int64_t max_length);

}  // namespace twinkle::cli
