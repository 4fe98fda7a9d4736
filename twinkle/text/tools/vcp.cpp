// The blocks of VCPChat: key:「始」value「末」 lines between the two marks of a request. tool_name
// is the tool, the others are its arguments, as text.
#include "twinkle/text/tools/format.h"
#include "twinkle/text/tools/scan.h"

namespace twinkle::text {
namespace {

constexpr std::string_view kRequestBegin = "<<<[TOOL_REQUEST]>>>";
constexpr std::string_view kRequestEnd = "<<<[END_TOOL_REQUEST]>>>";
// A value between the escaping brackets may hold the plain ones.
constexpr std::string_view kPlainBegin = "「始」", kPlainEnd = "「末」";
constexpr std::string_view kEscapedBegin = "「始ESCAPE」", kEscapedEnd = "「末ESCAPE」";

// The key before the brackets, with its colon at the end.
std::string_view key_at_end(std::string_view text) {
  text = right_stripped(text);
  if (!text.ends_with(':')) return {};
  text = right_stripped(text.substr(0, text.size() - 1));
  return text.substr(text.size() - word_at_end(text));
}

std::optional<Opening> next_field(std::string_view text, size_t from) {
  constexpr std::string_view kMark = "「始";
  for (size_t at = from; (at = text.find(kMark, at)) != text.npos; at += kMark.size()) {
    const bool escapes = text.substr(at).starts_with(kEscapedBegin);
    if (!escapes && !text.substr(at).starts_with(kPlainBegin)) continue;
    const std::string_view key = key_at_end(text.substr(from, at - from));
    if (key.empty()) continue;
    const size_t end = at + (escapes ? kEscapedBegin : kPlainBegin).size();
    const auto begin = static_cast<size_t>(key.data() - text.data());
    return Opening{begin, end, key, std::string(escapes ? kEscapedEnd : kPlainEnd)};
  }
  return std::nullopt;
}

std::optional<ToolCall> requested(std::string_view block) {
  std::string_view tool;
  FieldsText arguments;
  const LastMarks last = last_marks(block, {kPlainEnd, kEscapedEnd});
  const auto next = [block](size_t at) { return next_field(block, at); };
  for (const Block& field : blocks(block, last, next)) {
    if (field.name == "tool_name")
      tool = stripped(field.inside);
    else
      arguments.set_text(field.name, field.inside);
  }
  if (tool.empty()) return std::nullopt;
  return ToolCall{std::string(tool), arguments.str()};
}

std::vector<ToolPart> vcp_parts(std::string_view text) {
  const auto next = [text](size_t at) -> std::optional<Opening> {
    const size_t begin = text.find(kRequestBegin, at);
    if (begin == text.npos) return std::nullopt;
    return Opening{begin, begin + kRequestBegin.size(), {}, std::string(kRequestEnd)};
  };
  std::vector<ToolPart> out;
  for (const Block& block : blocks(text, last_marks(text, {kRequestEnd}), next))
    out.push_back({block.begin, block.end, requested(block.inside)});
  return out;
}

bool has_request(std::string_view text) { return text.find(kRequestBegin) != text.npos; }

}  // namespace

ToolFormat vcp() { return {.name = "vcp", .parts = vcp_parts, .detects = has_request}; }

}  // namespace twinkle::text
