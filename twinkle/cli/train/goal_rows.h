// Rows of the objectives that learn from pairs of replies, from verdicts or from rewards; rows.h
// has those of supervised fine-tuning.
#pragma once
#include <cstdint>
#include <string>

#include "twinkle/cli/train/training.h"
#include "twinkle/data/dataset.h"
#include "twinkle/text/template.h"

namespace twinkle::cli {

// The two chats of an encoded pair.
inline constexpr const char *kChosen = "positive", *kRejected = "negative";

// A judged chat, the same prompt with the reply to another one, and the verdict, true or false.
inline constexpr const char *kReply = "reply", *kOtherReply = "other_reply",
                            *kDesirable = "desirable";

// Pairs: rows of a form of preferences (docs/training.md), or of two chats under the names above,
// which the preprocessor may make. Error kInvalid, with file and line: another row, a chat that
// cannot be encoded, without a reply, or of more than max_length tokens.
data::Dataset preference_rows(const std::string& file, const TrainingFiles& files,
                              const text::Template& tmpl, int64_t max_length);

// Chats with a verdict on the reply, the column `label` or `kto_tag`: rows of messages or of a form
// that becomes messages. Judged are the replies after the user's last message; with `others`
// each prompt also gets the reply of the row before it that has another prompt. Errors likewise,
// and kInvalid: a row without a verdict, and others where all prompts are the same.
data::Dataset judged_rows(const std::string& file, const TrainingFiles& files,
                          const text::Template& tmpl, int64_t max_length, bool others);

// Prompts, encoded up to where the reply begins: rows of `messages` that end with the user's turn,
// or of `prompt`, a text. Errors likewise.
data::Dataset prompt_rows(const std::string& file, const TrainingFiles& files,
                          const text::Template& tmpl, int64_t max_length);

}  // namespace twinkle::cli
