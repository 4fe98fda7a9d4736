#include "twinkle/text/tools/json_text.h"

#include <algorithm>
#include <array>
#include <string>

namespace twinkle::text {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdefABCDEF";

// Moves over the parts of a JSON text. A function that returns false has found another part.
class JsonScanner {
 public:
  explicit JsonScanner(std::string_view text) : text_(text) {}

  size_t at() const { return at_; }
  // The place of the next part, behind white space.
  size_t next() { return at_ = std::min(text_.find_first_not_of(" \t\n\r", at_), text_.size()); }
  bool is_at_end() { return next() == text_.size(); }

  bool take(char c) {
    if (is_at_end() || text_[at_] != c) return false;
    return ++at_, true;
  }

  // A string; false leaves the place within it.
  bool string() {
    if (!take('"')) return false;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"') return true;
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c == '\\' && !escape()) return false;
    }
    return false;
  }

  // A member's name with its colon.
  bool key() { return string() && take(':'); }

  bool value() {
    std::string open;  // brackets
    for (;;) {
      if (open.size() < kMaxJsonLevels && (take('{') || take('['))) {
        open += text_[at_ - 1];
        if (!take(closing(open.back()))) {
          if (open.back() == '{' && !key()) return false;
          continue;
        }
        open.pop_back();
      } else if (!scalar()) {
        return false;
      }
      while (!open.empty() && !take(',')) {
        if (!take(closing(open.back()))) return false;
        open.pop_back();
      }
      if (open.empty()) return true;
      if (open.back() == '{' && !key()) return false;
    }
  }

 private:
  static char closing(char bracket) { return bracket == '{' ? '}' : ']'; }

  bool escape() {
    if (at_ == text_.size()) return false;
    const char c = text_[at_++];
    if (c != 'u') return std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos;
    const std::string_view code = text_.substr(at_, 4);
    at_ += code.size();
    return code.size() == 4 && code.find_first_not_of(kHexDigits) == code.npos;
  }

  bool scalar() {
    if (!is_at_end() && text_[at_] == '"') return string();
    static constexpr std::array<std::string_view, 6> kWords = {"null", "true",     "false",
                                                               "NaN",  "Infinity", "-Infinity"};
    for (const std::string_view word : kWords) {
      if (!text_.substr(at_).starts_with(word)) continue;
      return at_ += word.size(), true;
    }
    return number();
  }

  size_t digits() {
    const size_t begin = at_;
    at_ = std::min(text_.find_first_not_of("0123456789", at_), text_.size());
    return at_ - begin;
  }

  bool take_one_of(std::string_view characters) {
    if (at_ == text_.size() || characters.find(text_[at_]) == characters.npos) return false;
    return ++at_, true;
  }

  bool number() {
    take_one_of("-");
    const size_t first = at_, count = digits();
    if (count == 0 || (count > 1 && text_[first] == '0')) return false;
    const bool has_fraction = take_one_of(".");
    if (has_fraction && digits() == 0) return false;
    const bool has_exponent = take_one_of("eE");
    if (has_exponent) take_one_of("+-");
    if (has_exponent && digits() == 0) return false;
    return has_fraction || has_exponent || count <= kMaxIntegerDigits;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

bool is_json(std::string_view text) {
  JsonScanner scanner(text);
  return scanner.value() && scanner.is_at_end();
}

std::optional<std::vector<JsonMember>> members_of(std::string_view text) {
  JsonScanner scanner(text);
  std::vector<JsonMember> out;
  if (!scanner.take('{')) return std::nullopt;
  bool is_whole = scanner.take('}');
  while (!is_whole) {
    const size_t key = scanner.next();
    if (!scanner.string()) return std::nullopt;
    const size_t end_of_key = scanner.at();
    if (!scanner.take(':')) return std::nullopt;
    const size_t value = scanner.next();
    if (!scanner.value()) return std::nullopt;
    out.push_back({text.substr(key, end_of_key - key), text.substr(value, scanner.at() - value)});
    is_whole = scanner.take('}');
    if (!is_whole && !scanner.take(',')) return std::nullopt;
  }
  if (!scanner.is_at_end()) return std::nullopt;
  return out;
}

}  // namespace twinkle::text
