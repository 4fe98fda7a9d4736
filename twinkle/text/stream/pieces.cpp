#include "twinkle/text/stream/pieces.h"

#include <algorithm>
#include <string_view>

namespace twinkle::text {
namespace {

constexpr std::string_view kIncomplete = "\xEF\xBF\xBD";  // U+FFFD

// The text behind so many bytes, and behind the character that they may end in.
std::string behind(std::string_view text, size_t bytes) {
  size_t begin = std::min(bytes, text.size());
  while (begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80U) ++begin;
  return std::string(text.substr(begin));
}

}  // namespace

std::string TextPieces::add(int64_t token) {
  ids_.push_back(token);
  const std::span<const int64_t> tail = std::span(ids_).subspan(start_);
  const std::string before = decode_(tail.first(read_ - start_));
  const std::string text = decode_(tail);
  if (text.ends_with(kIncomplete) || text.size() <= before.size()) return "";
  start_ = read_;
  read_ = ids_.size();
  std::string piece = behind(text, before.size());
  given_ += piece;
  return piece;
}

std::string TextPieces::add_last(int64_t token) {
  ids_.push_back(token);
  return rest();
}

std::string TextPieces::rest() {
  std::string text = decode_(ids_);
  std::string piece = behind(text, given_.size());
  given_ = std::move(text);
  return piece;
}

}  // namespace twinkle::text
