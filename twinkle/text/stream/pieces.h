// The text of one sequence in pieces, as its tokens come, which together are the text of all of
// them. Decodes a short tail for each piece, and the whole once, for the last. Knows no tokenizer.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace twinkle::text {

class TextPieces {
 public:
  // Token ids to text; what is no character yet ends it as U+FFFD.
  using Decode = std::function<std::string(std::span<const int64_t>)>;

  explicit TextPieces(Decode decode) : decode_(std::move(decode)) {}

  // The text that one more token adds; "" while it is a part of a character.
  std::string add(int64_t token);
  // The same of the last token: all that is left of the text.
  std::string add_last(int64_t token);
  // The rest of the text, where no token comes any more.
  std::string rest();

  // All that was given; after rest() the whole text.
  const std::string& text() const { return given_; }
  int64_t num_tokens() const { return std::ssize(ids_); }

 private:
  Decode decode_;
  std::vector<int64_t> ids_;
  std::string given_;
  size_t start_ = 0, read_ = 0;  // ids_[start_, read_) are given, and precede what comes
};

}  // namespace twinkle::text
