// <tool_call> blocks, as Hermes and the Qwen families write them: {"name": ..., "arguments": {...}}
// or <function=name><parameter=key>value</parameter></function> in each; the last one may lack its
// end.
#include <algorithm>

#include "twinkle/base/json.h"
#include "twinkle/text/tools/format.h"
#include "twinkle/text/tools/json_text.h"
#include "twinkle/text/tools/scan.h"

namespace twinkle::text {
namespace {

constexpr std::string_view kCallBegin = "<tool_call>", kCallEnd = "</tool_call>";
constexpr std::string_view kFunctionEnd = "</function>", kParameterEnd = "</parameter>";
constexpr std::string_view kResponseBegin = "<tool_response>", kResponseEnd = "</tool_response>";

// "<parameter=name>" for the mark "<parameter=".
std::optional<Opening> next_named(std::string_view text, std::string_view mark, size_t at) {
  while ((at = text.find(mark, at)) != text.npos) {
    const size_t name = at + mark.size(), end = text.find_first_of("<>\n", name);
    if (end == text.npos) return std::nullopt;
    if (end > name && text[end] == '>')
      return Opening{at, end + 1, text.substr(name, end - name), std::string(kParameterEnd)};
    at = name;
  }
  return std::nullopt;
}

// Up to the mark, or all of it.
std::string_view until(std::string_view text, std::string_view mark) {
  return text.substr(0, text.find(mark));
}

ToolCall call_in_xml(std::string_view name, std::string_view body) {
  FieldsText arguments;
  const auto next = [body](size_t at) { return next_named(body, "<parameter=", at); };
  for (const Block& block : blocks(body, last_marks(body, {kParameterEnd}), next)) {
    const std::string_view key = stripped(block.name), value = stripped(block.inside);
    if (is_json(value))
      arguments.set_json(key, value);
    else
      arguments.set_text(key, value);
  }
  return {std::string(stripped(name)), arguments.str()};
}

// The text of a JSON string; nothing: it is none, or has half of a surrogate pair.
std::optional<std::string> string_of(std::string_view json) {
  const std::optional<Json> value = json_in(json);
  if (!value || !value->is_string()) return std::nullopt;
  return std::string(value->get_string());
}

// The arguments of a call: an object, or its JSON text; of anything else none.
std::string arguments_of(std::string_view json) {
  if (members_of(json)) return std::string(json);
  const std::optional<std::string> text = string_of(json);
  return text && members_of(*text) ? *text : "{}";
}

std::optional<ToolCall> call_in_json(std::string_view block) {
  const auto members = members_of(block);
  if (!members) return std::nullopt;
  std::optional<std::string> name;
  std::string_view arguments = "{}";
  for (const auto& [key, value] : *members) {
    const std::optional<std::string> field = string_of(key);
    if (field == "name") name = string_of(value);
    if (field == "arguments") arguments = value;
  }
  if (!name || name->empty()) return std::nullopt;
  return ToolCall{*name, arguments_of(arguments)};
}

std::optional<ToolCall> call_in(std::string_view block) {
  if (const auto function = next_named(block, "<function=", 0))
    return call_in_xml(function->name, until(block.substr(function->end), kFunctionEnd));
  return call_in_json(block);
}

std::vector<ToolPart> hermes_parts(std::string_view text) {
  std::vector<ToolPart> out;
  for (size_t at = 0; (at = text.find(kCallBegin, at)) != text.npos; at = out.back().end) {
    const size_t begin = at + kCallBegin.size();
    const std::string_view block = until(text.substr(begin), kCallEnd);
    const size_t end = std::min(begin + block.size() + kCallEnd.size(), text.size());
    out.push_back({at, end, call_in(block)});
  }
  return out;
}

std::optional<std::string_view> hermes_result(std::string_view text) {
  text = left_stripped(text);
  if (!text.starts_with(kResponseBegin)) return std::nullopt;
  text = stripped(text.substr(kResponseBegin.size()));
  if (text.ends_with(kResponseEnd)) text.remove_suffix(kResponseEnd.size());
  return stripped(text);
}

}  // namespace

ToolFormat hermes_qwen() {
  return {.name = "hermes_qwen", .parts = hermes_parts, .result = hermes_result};
}

}  // namespace twinkle::text
