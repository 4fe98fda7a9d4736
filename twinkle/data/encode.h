// Rows of messages, or of a form that is read as such (forms.h), to encoded rows: the row's own
// fields, and input_ids, labels (shifted already), attention_mask, position_ids, length. The
// template does the work; this knows how a row carries it. And raw text to such rows.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/data/dataset.h"
#include "twinkle/text/rust/tokenizer.h"
#include "twinkle/text/template.h"

namespace twinkle::data {

// An encoder for Dataset::encode over `tmpl`, which must outlive it. A row of a known form gets the
// fields of its preprocessor first, unless there are replies to come: with the generation prompt it
// is refused. A row without `messages` whose
// fields are trajectories (`positive`, `negative`) has each of those encoded; it is dropped when
// one of them encodes to nothing. Error kInvalid: as Template::encode; a nested trajectory that
// would be split.
Encoder encoder(const text::Template& tmpl, bool add_generation_prompt = false);

// Why `row` cannot be encoded, nested trajectories included; none: it can be.
std::optional<std::string> why_not(const text::Template& tmpl, const Row& row);

// For pretraining: the texts of the rows' column `text`, each with the special tokens that the
// tokenizer puts around it and its eos_token at the end, one behind the other, in encoded rows of
// max_length tokens; the last has fewer. Every token but the very first is a label once. A row
// stands in the place of the text that it begins in; texts of white space alone are left out. Error
// kInvalid: a row without such a text, by its place; the tokenizer names no eos_token; max_length
// below 1.
Dataset encode_texts(const Dataset& rows, const text::Tokenizer& tokenizer, int64_t max_length);

// The numbers of an encoded row's `field`, such as input_ids or labels. Error kInvalid: it is
// missing, or no list of integers of 32 bits.
std::vector<int32_t> integers(const Row& row, std::string_view field);

}  // namespace twinkle::data
