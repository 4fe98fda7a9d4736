// The arguments of a call of a loss, besides its batch: numbers for each sequence, for each pair of
// them or for each label. A script's values and a request's JSON become these. Knows no loss.
#pragma once
#include <ATen/ATen.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "twinkle/base/json.h"

namespace twinkle::loss {

// The log-probabilities that came with one sampled token: (token, log p), its own among them.
using OfToken = std::vector<std::pair<int64_t, double>>;

// One sequence's, or one pair's: numbers, those of sampled tokens, or neither.
struct Entry {
  at::Tensor numbers;            // any shape and type, on the CPU; or undefined
  std::vector<OfToken> sampled;  // one for each token; or empty
  std::string told;              // the value, for an error, where it is neither
  bool is_none = false;          // it is Python's None, JSON's null
};

// As errors tell it.
std::string entry_told(const Entry& entry);

struct Given {
  std::vector<Entry> entries;
  std::string told;  // the value, where it is no list of entries; else empty
};

// By the arguments' names, without those that are None.
using Arguments = std::map<std::string, Given, std::less<>>;

// The argument that is what a forward returned: its 'logps' are the entries.
inline constexpr std::string_view kOutputs = "ref_outputs";

// Those of a JSON object, such as {"advantages": [1, -1], "old_logps": [[-0.5, -2], [-1]]}; [[[5,
// -0.5]],
// ...] are tokens as they were sampled. Error kInvalid: it is no object.
Arguments arguments_in(const Json& json);

}  // namespace twinkle::loss
