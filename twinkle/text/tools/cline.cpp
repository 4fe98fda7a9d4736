// Calls as XML elements named after the tool, as Cline and its kin write them:
// <read_file><path>a.py</path></read_file>. Each argument is an inner element, as text; an element
// without inner ones is no call.
#include <algorithm>
#include <array>

#include "twinkle/text/tools/format.h"
#include "twinkle/text/tools/scan.h"

namespace twinkle::text {
namespace {

// Elements that are no tools: parts of a conversation, of other formats, and of HTML.
constexpr auto kNoTools = std::to_array<std::string_view>({"think",
                                                           "answer",
                                                           "reasoning_content",
                                                           "system",
                                                           "user",
                                                           "assistant",
                                                           "message",
                                                           "messages",
                                                           "content",
                                                           "response",
                                                           "output",
                                                           "role",
                                                           "tool",
                                                           "tools",
                                                           "tool_call",
                                                           "tool_response",
                                                           "function",
                                                           "parameter",
                                                           "parameters",
                                                           "html",
                                                           "head",
                                                           "body",
                                                           "p",
                                                           "a",
                                                           "b",
                                                           "i",
                                                           "u",
                                                           "em",
                                                           "strong",
                                                           "div",
                                                           "span",
                                                           "pre",
                                                           "code",
                                                           "br",
                                                           "hr",
                                                           "ul",
                                                           "ol",
                                                           "li",
                                                           "h1",
                                                           "h2",
                                                           "h3",
                                                           "h4",
                                                           "h5",
                                                           "h6",
                                                           "table",
                                                           "tr",
                                                           "td",
                                                           "th",
                                                           "tbody",
                                                           "thead",
                                                           "img",
                                                           "video",
                                                           "audio",
                                                           "svg",
                                                           "form",
                                                           "section",
                                                           "article"});

// The length of an element's name at the beginning: [a-z][a-z0-9_]*.
size_t name_length(std::string_view text) {
  if (text.empty() || text[0] < 'a' || text[0] > 'z') return 0;
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789_";
  return std::min(text.find_first_not_of(kLetters), text.size());
}

// The next <name> or </name>, by its mark "<" or "</"; its `name` is empty where there is none.
Opening next_element(std::string_view text, std::string_view mark, size_t at) {
  while ((at = text.find(mark, at)) != text.npos) {
    const size_t name = at + mark.size(), length = name_length(text.substr(name));
    if (length > 0 && name + length < text.size() && text[name + length] == '>')
      return {at, name + length + 1, text.substr(name, length), {}};
    at = name;
  }
  return {};
}

std::vector<Block> elements(std::string_view text) {
  LastMarks last;
  for (Opening end = next_element(text, "</", 0); !end.name.empty();
       end = next_element(text, "</", end.end))
    last.insert_or_assign(std::string(text.substr(end.begin, end.end - end.begin)), end.begin);
  return blocks(text, last, [text](size_t at) -> std::optional<Opening> {
    Opening out = next_element(text, "<", at);
    if (out.name.empty()) return std::nullopt;
    out.close.append("</").append(out.name).append(">");
    return out;
  });
}

std::vector<ToolPart> cline_parts(std::string_view text) {
  std::vector<ToolPart> out;
  for (const Block& block : elements(text)) {
    if (std::ranges::find(kNoTools, block.name) != kNoTools.end()) continue;
    FieldsText arguments;
    for (const Block& inner : elements(block.inside))
      arguments.set_text(inner.name, stripped(inner.inside));
    if (!arguments.empty())
      out.push_back({block.begin, block.end, ToolCall{std::string(block.name), arguments.str()}});
  }
  return out;
}

// "[read_file for 'a.py'] Result: ...".
std::optional<std::string_view> cline_result(std::string_view text) {
  constexpr std::string_view kFor = " for '", kEnd = "']", kResult = "Result:";
  const size_t length = text.starts_with('[') ? name_length(text.substr(1)) : 0;
  if (length == 0 || !text.substr(1 + length).starts_with(kFor)) return std::nullopt;
  text.remove_prefix(1 + length + kFor.size());
  text.remove_prefix(std::min(text.find('\''), text.size()));
  if (!text.starts_with(kEnd)) return std::nullopt;
  text = left_stripped(text.substr(kEnd.size()));
  if (!text.starts_with(kResult)) return std::nullopt;
  return left_stripped(text.substr(kResult.size()));
}

}  // namespace

ToolFormat cline() { return {.name = "cline", .parts = cline_parts, .result = cline_result}; }

}  // namespace twinkle::text
