// Texts that quote what was sent.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace twinkle::server {

// At most so many bytes of it, and whole characters of UTF-8.
inline std::string_view beginning(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0) == 0x80) --most;
  return text.substr(0, most);
}

// As an error's text can quote it, which ends at a byte of 0. Not of a string_view: std::quoted
// would be the better match for a string.
inline std::string quoted(const std::string& text) {
  std::string out;
  for (const char c : text)
    if (c == '\0')
      out += "\\0";
    else
      out += c;
  return out;
}

// The text, or its beginning and "...", in at most 1024 bytes: as it is kept. That of a brief text
// is the text.
inline std::string brief(std::string_view text) {
  constexpr size_t kMost = 1024;
  constexpr std::string_view kMore = "...";
  if (text.size() <= kMost) return std::string(text);
  return std::string(beginning(text, kMost - kMore.size())) + std::string(kMore);
}

}  // namespace twinkle::server
