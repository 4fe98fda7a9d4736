#include "twinkle/text/tools/scan.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "twinkle/base/json.h"

namespace twinkle::text {
namespace {

struct Character {
  char32_t code;
  size_t size;  // bytes
};

bool continues(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// The text is not empty.
Character first_of(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  Character out{lead, 1};
  if (lead < 0xC0) return out;
  out.code = lead & (lead < 0xE0 ? 0x1Fu : lead < 0xF0 ? 0x0Fu : 0x07u);
  for (; out.size < text.size() && continues(text[out.size]); ++out.size)
    out.code = out.code << 6 | (static_cast<unsigned char>(text[out.size]) & 0x3Fu);
  return out;
}

Character last_of(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && continues(text[begin])) --begin;
  return first_of(text.substr(begin));
}

// str.isspace() of Python.
bool is_space(char32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// The blocks of Unicode above ASCII that hold marks and symbols; the rest is taken for letters and
// digits, which needs no table of every script.
constexpr std::array<std::array<char32_t, 2>, 24> kNoWords = {
    {{0x80, 0xA9},     {0xAB, 0xB1},     {0xB4, 0xB4},     {0xB6, 0xB8},      {0xBB, 0xBB},
     {0xBF, 0xBF},     {0xD7, 0xD7},     {0xF7, 0xF7},     {0x2C2, 0x2C5},    {0x300, 0x36F},
     {0x2000, 0x206F}, {0x207A, 0x207E}, {0x208A, 0x208E}, {0x20A0, 0x20F0},  {0x2190, 0x245F},
     {0x249C, 0x24E9}, {0x2500, 0x2775}, {0x2794, 0x2BFF}, {0x2E00, 0x3004},  {0x3008, 0x3020},
     {0x30FB, 0x30FB}, {0xD800, 0xF8FF}, {0xFE00, 0xFE6F}, {0x1F000, 0x1FAFF}}};
constexpr std::array<std::array<char32_t, 2>, 5> kNoWideWords = {
    {{0xFF00, 0xFF0F}, {0xFF1A, 0xFF20}, {0xFF3B, 0xFF40}, {0xFF5B, 0xFF65}, {0xFFE0, 0xFFFF}}};

bool is_word(char32_t c) {
  if (c < 0x80) return std::isalnum(static_cast<int>(c)) != 0 || c == '_';
  const auto holds = [c](const auto& range) { return c >= range[0] && c <= range[1]; };
  return std::ranges::none_of(kNoWords, holds) && std::ranges::none_of(kNoWideWords, holds);
}

}  // namespace

std::string_view left_stripped(std::string_view text) {
  while (!text.empty() && is_space(first_of(text).code)) text.remove_prefix(first_of(text).size);
  return text;
}

std::string_view right_stripped(std::string_view text) {
  while (!text.empty() && is_space(last_of(text).code)) text.remove_suffix(last_of(text).size);
  return text;
}

std::string_view stripped(std::string_view text) { return left_stripped(right_stripped(text)); }

std::string_view without_blanks(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(" \t"), text.size()));
}

size_t word_at_end(std::string_view text) {
  size_t begin = text.size();
  while (begin > 0 && is_word(last_of(text.substr(0, begin)).code))
    begin -= last_of(text.substr(0, begin)).size;
  return text.size() - begin;
}

size_t word_at_begin(std::string_view text, std::string_view more) {
  size_t end = 0;
  while (end < text.size() &&
         (more.find(text[end]) != more.npos || is_word(first_of(text.substr(end)).code)))
    end += first_of(text.substr(end)).size;
  return end;
}

LastMarks last_marks(std::string_view text, std::initializer_list<std::string_view> marks) {
  LastMarks out;
  for (const std::string_view mark : marks)
    if (const size_t at = text.rfind(mark); at != text.npos) out.emplace(mark, at);
  return out;
}

std::vector<Block> blocks(std::string_view text, const LastMarks& last,
                          const std::function<std::optional<Opening>(size_t)>& next) {
  std::vector<Block> out;
  for (std::optional<Opening> open = next(0); open;) {
    size_t at = open->end;
    if (const auto found = last.find(open->close); found != last.end() && found->second >= at) {
      const size_t end = text.find(open->close, at);
      out.push_back({open->begin, end + open->close.size(), open->name, text.substr(at, end - at)});
      at = out.back().end;
    }
    open = next(at);
  }
  return out;
}

void FieldsText::set_json(std::string_view name, std::string_view json) {
  const auto [place, is_new] = places_.emplace(name, fields_.size());
  if (is_new) fields_.push_back({std::string(name), {}});
  fields_[place->second].json = json;
}

void FieldsText::set_text(std::string_view name, std::string_view text) {
  set_json(name, boost::json::serialize(Json(text)));
}

std::string FieldsText::str() const {
  std::string out = "{";
  for (const Field& field : fields_) {
    if (out.size() > 1) out += ", ";
    out += boost::json::serialize(Json(field.name)) + ": " + field.json;
  }
  return out + "}";
}

}  // namespace twinkle::text
