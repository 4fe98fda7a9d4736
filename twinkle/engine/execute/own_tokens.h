// Labels that repeat their own tokens, as transformers' models take them and shift them: here they
// would teach a model to repeat each token. Any thread.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "twinkle/engine/protocol/operation.h"

namespace twinkle::engine {

class OwnTokens {
 public:
  // Takes the batch's next sequence. False: a scored label differs from its token, or a token has
  // several; the others need not be looked at.
  bool add(const Example& sequence);
  // Error kInvalid: every scored label so far is the token at its own place, there are 8 or more of
  // them, of two tokens or more, and one is not the token that follows.
  void refuse() const;

 private:
  size_t num_sequences_ = 0;
  int64_t num_labels_ = 0;
  size_t labelled_ = 0;  // the first sequence with a scored label
  std::optional<int32_t> first_;
  bool several_ = false, unshifted_ = false;
};

// The same of a whole batch.
void refuse_own_tokens(const std::vector<Example>& sequences);

}  // namespace twinkle::engine
