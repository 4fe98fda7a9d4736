// How models write calls of tools into their text: one file for each format, and one line in
// formats.def. A text is UTF-8 and places in it are bytes. Whatever a model writes, the time is in
// proportion to its length. Knows no template and no tokens. Values; any thread.
#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace twinkle::text {

struct ToolCall {
  std::string name;
  std::string arguments;  // the JSON text of an object; as the model wrote it where it wrote JSON
};

// A part of a text, [begin, end), that is written in a format.
struct ToolPart {
  size_t begin = 0, end = 0;
  std::optional<ToolCall> call = {};  // nothing: the part is broken
};

struct ToolFormat {
  std::string_view name;                                  // "hermes_qwen", as users write it
  std::vector<ToolPart> (*parts)(std::string_view text);  // in their order, not overlapping
  // True if the text holds the format's marks; null: if it has a part.
  bool (*detects)(std::string_view text) = nullptr;
  // The result in a tool's message that has one in this format; null: the format frames none.
  std::optional<std::string_view> (*result)(std::string_view text) = nullptr;

  bool is_in(std::string_view text) const;
  // In their order, without those that are broken.
  std::vector<ToolCall> calls(std::string_view text) const;
  // The text without its parts, and without white space at its end.
  std::string cleaned(std::string_view text) const;
  std::optional<std::string_view> result_in(std::string_view text) const;
};

// All of them, in the order of formats.def.
std::span<const ToolFormat> tool_formats();
// Error kNotFound: there is none of this name; the known ones are listed.
const ToolFormat& tool_format(std::string_view name);

}  // namespace twinkle::text
