#include "twinkle/base/encoding/text_fault.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "twinkle/base/encoding/utf8.h"

namespace twinkle {
namespace {

constexpr const char* kUtf16 = "UTF-16, not UTF-8; save the file as UTF-8";
constexpr const char* kNoUtf8 = "invalid UTF-8; save the file as UTF-8";

bool is_utf16(std::string_view text) {
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) return true;
  text = text.substr(0, 64);
  const auto num_nuls = std::ranges::count(text, '\0');
  return num_nuls > 0 && 4 * num_nuls >= std::ssize(text);
}

std::string_view word_around(std::string_view text, size_t at) {
  const auto is_letter = [&](size_t i) {
    return std::isalpha(static_cast<unsigned char>(text[i])) != 0;
  };
  if (at < text.size() && text[at] == '-') ++at;
  size_t end = at;
  while (at > 0 && is_letter(at - 1)) --at;
  while (end < text.size() && is_letter(end)) ++end;
  return text.substr(at, end - at);
}

}  // namespace

std::string_view without_mark(std::string_view text) {
  return text.starts_with(kByteOrderMark) ? text.substr(kByteOrderMark.size()) : text;
}

bool is_lfs_pointer(std::string_view bytes) {
  return bytes.starts_with("version https://git-lfs.github.com/spec/");
}

std::string encoding_fault(std::string_view text) {
  const size_t at = std::min(invalid_utf8(text), text.find('\0'));
  if (at == text.npos) return "";
  if (is_utf16(text)) return kUtf16;
  return text[at] == '\0' ? "a NUL character; remove it" : kNoUtf8;
}

std::string json_fault(std::string_view text, size_t at) {
  if (is_lfs_pointer(text)) return kLfsPointer;
  if (is_utf16(text)) return kUtf16;
  if (at < text.size() && text[at] == '\0')
    return "a NUL character; write \\u0000 in a string, or remove it";
  if (invalid_utf8(text.substr(0, at + 4)) <= at) return kNoUtf8;
  if (at >= text.size()) return "";
  if (text.substr(at).starts_with(kByteOrderMark)) return "a byte order mark; remove it";
  if (text[at] == '\'')
    return "single quotes; JSON has double quotes, as Python's json.dumps writes them";
  const std::string_view word = word_around(text, at);
  const auto is_one_of = [word](const auto& words) {
    return std::ranges::find(words, word) != words.end();
  };
  static constexpr std::array<std::string_view, 5> kNoNumbers = {"NaN", "nan", "Infinity", "inf",
                                                                 "Inf"};
  static constexpr std::array<std::string_view, 3> kPython = {"None", "True", "False"};
  if (is_one_of(kNoNumbers))
    return std::string(word) + " is not JSON; write null, or leave the field out";
  if (is_one_of(kPython))
    return std::string(word) +
           " is Python, not JSON; write null, true or false, as Python's "
           "json.dumps does";
  return "";
}

}  // namespace twinkle
