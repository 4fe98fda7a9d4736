// The rows that `twinkle train` learns from, each checked before the first step.
#pragma once
#include <cstdint>
#include <string>

#include "twinkle/cli/train/training.h"
#include "twinkle/data/dataset.h"
#include "twinkle/text/template.h"

namespace twinkle::cli {

// The rows of `file`, or of a hub's id or an alias, with columns under new names, after the
// preprocessor, if `files` has any. Lines about how they are read go to standard error. Error
// kNotFound; kInvalid, with file and line.
data::Dataset read_rows(const std::string& file, const TrainingFiles& files);

// Error kInvalid: the row is of a pair of replies, or one to avoid, and teaches by that alone.
void refuse_preferences(const data::Row& row);

// The same, encoded; a line about what may be meant otherwise goes to standard error. `tmpl` has no
// limit of its own. Error kInvalid, with file and line: a row that cannot be encoded, of more than
// max_length tokens, or without a label to learn from.
data::Dataset trainable_rows(const std::string& file, const TrainingFiles& files,
                             const text::Template& tmpl, int64_t max_length);

// Texts for pretraining: the column `text` of the rows, one text behind the other, in rows of
// max_length tokens. Errors as read_rows and data::encode_texts.
data::Dataset text_rows(const std::string& file, const TrainingFiles& files,
                        const text::Template& tmpl, int64_t max_length);

// The built-in preprocessors whose rows can be trained on, separated by commas.
std::string preprocessors_for_tuning();

// Error kInvalid: --preprocessor names none; for_tuning: or none of these.
void check_preprocessor(const std::string& name, bool for_tuning);

}  // namespace twinkle::cli
