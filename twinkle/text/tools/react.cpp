// The Action lines of ReAct (Yao et al. 2023): `Action: name[text]`, or `Action: name` and below it
// `Action Input: text`. The arguments are {"input": text}; those of an Action Input that is a JSON
// object are that object.
#include <algorithm>
#include <utility>

#include "twinkle/text/tools/format.h"
#include "twinkle/text/tools/json_text.h"
#include "twinkle/text/tools/scan.h"

namespace twinkle::text {
namespace {

// Without "Word:" at the beginning, with blanks around; nothing: it does not begin so.
std::optional<std::string_view> behind_label(std::string_view text, std::string_view word) {
  text = without_blanks(text);
  if (!text.starts_with(word)) return std::nullopt;
  text = without_blanks(text.substr(word.size()));
  if (!text.starts_with(':')) return std::nullopt;
  return without_blanks(text.substr(1));
}

std::string_view line_of(std::string_view text) { return text.substr(0, text.find('\n')); }

// The text in the brackets that the line begins and ends with.
std::optional<std::string_view> in_brackets(std::string_view line) {
  const size_t last = line.find_last_not_of(" \t");
  if (!line.starts_with('[') || last == line.npos || line[last] != ']') return std::nullopt;
  return line.substr(1, last - 1);
}

std::string input_of(std::string_view text) {
  FieldsText arguments;
  arguments.set_text("input", text);
  return arguments.str();
}

// The call at the beginning of the text and of a line.
std::optional<ToolPart> action_at(std::string_view text, size_t begin) {
  const auto part = [&](std::string_view last_line, std::string_view name, std::string arguments) {
    const auto end = static_cast<size_t>(last_line.data() - text.data()) + last_line.size();
    return ToolPart{begin, std::min(end + 1, text.size()),
                    ToolCall{std::string(name), std::move(arguments)}};
  };
  const auto action = behind_label(text.substr(begin), "Action");
  if (!action) return std::nullopt;
  const std::string_view name = action->substr(0, word_at_begin(*action, "./-"));
  const std::string_view rest = without_blanks(action->substr(name.size()));
  if (name.empty()) return std::nullopt;
  if (const auto inside = in_brackets(line_of(rest)))
    return part(line_of(rest), name, input_of(*inside));
  if (!rest.starts_with('\n')) return std::nullopt;
  const auto below = behind_label(rest.substr(1), "Action Input");
  if (!below) return std::nullopt;
  const std::string_view input = stripped(line_of(*below));
  return part(line_of(*below), name, members_of(input) ? std::string(input) : input_of(input));
}

std::vector<ToolPart> react_parts(std::string_view text) {
  std::vector<ToolPart> out;
  for (size_t at = 0; at < text.size();) {
    if (auto action = action_at(text, at)) {
      at = action->end;
      out.push_back(std::move(*action));
    } else {
      at += line_of(text.substr(at)).size() + 1;
    }
  }
  return out;
}

std::optional<std::string_view> react_result(std::string_view text) {
  return behind_label(left_stripped(text), "Observation");
}

}  // namespace

ToolFormat react() { return {.name = "react", .parts = react_parts, .result = react_result}; }

}  // namespace twinkle::text
