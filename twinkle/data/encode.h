// Rows of messages to encoded rows: the row's own fields, and input_ids, labels (shifted already),
// attention_mask, position_ids, length. The template does the work; this knows how a row carries
// it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/data/dataset.h"
#include "twinkle/text/template.h"

namespace twinkle::data {

// An encoder for Dataset::encode over `tmpl`, which must outlive it. A row without `messages` whose
// fields are trajectories (`positive`, `negative`) has each of those encoded; it is dropped when
// one of them encodes to nothing. Error kInvalid: as Template::encode; a nested trajectory that
// would be split.
Encoder encoder(const text::Template& tmpl, bool add_generation_prompt = false);

// Why `row` cannot be encoded, nested trajectories included; none: it can be.
std::optional<std::string> why_not(const text::Template& tmpl, const Row& row);

// The numbers of an encoded row's `field`, such as input_ids or labels. Error kInvalid: it is
// missing, or no list of integers of 32 bits.
std::vector<int32_t> integers(const Row& row, std::string_view field);

}  // namespace twinkle::data
