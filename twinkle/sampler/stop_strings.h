// Finds stop strings in text that arrives token by token, at the token that completes one. Decodes
// a short tail each time, never the whole text. Belongs to one sequence.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace twinkle::sampler {

// Token ids to text.
using Decode = std::function<std::string(std::span<const int32_t>)>;

class StopStrings {
 public:
  // `stops` and `decode` outlive this object.
  StopStrings(const std::vector<std::string>& stops, const Decode& decode);

  // To be called with all generated tokens after each new one. The stop string whose occurrence
  // begins first in the text (of those, the first in the list), or nullptr when there is none.
  const std::string* find(std::span<const int32_t> generated);
  // After find() has found none: how many of the same tokens no stop string can begin in any more,
  // whatever follows. All, when there are no stop strings.
  size_t num_settled(std::span<const int32_t> generated) const;

 private:
  const std::vector<std::string>& stops_;
  const Decode& decode_;
  size_t longest_ = 0;     // bytes
  size_t begin_ = 0;       // first token of the tail: no stop string can begin before it
  std::string text_;       // that find() has looked at
  size_t text_begin_ = 0;  // its first token
};

}  // namespace twinkle::sampler
