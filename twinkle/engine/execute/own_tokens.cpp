#include "twinkle/engine/execute/own_tokens.h"

#include <algorithm>

#include "twinkle/base/error.h"
#include "twinkle/engine/training/training_op.h"

namespace twinkle::engine {

constexpr int64_t kFewestOwn = 8;  // fewer labels may be equal by chance

bool OwnTokens::add(const Example& s) {
  if (s.num_targets != 1) return false;
  const size_t number = num_sequences_++;
  for (size_t t = 0; t < std::min(s.labels.size(), s.input_ids.size()); ++t) {
    const int32_t label = s.labels[t];
    if (label == kIgnored || (t < s.weights.size() && s.weights[t] == 0)) continue;
    if (label != s.input_ids[t]) return false;
    if (num_labels_++ == 0) labelled_ = number;
    several_ = several_ || (first_ && *first_ != label);
    first_ = first_.value_or(label);
    // In a run of one token a label is its own token and the next one, too.
    unshifted_ = unshifted_ || (t + 1 < s.input_ids.size() && s.input_ids[t + 1] != label);
  }
  return true;
}

void OwnTokens::refuse() const {
  require(num_labels_ < kFewestOwn || !several_ || !unshifted_, Code::kInvalid,
          "engine: labels of inputs[", labelled_,
          "] are its own tokens; here labels[t] is the token after t: pass labels[1:] + [-100]");
}

void refuse_own_tokens(const std::vector<Example>& sequences) {
  OwnTokens labels;
  for (const Example& sequence : sequences)
    if (!labels.add(sequence)) return;
  labels.refuse();
}

}  // namespace twinkle::engine
