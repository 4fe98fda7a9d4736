#include "twinkle/text/tools/format.h"

#include <algorithm>
#include <array>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/text/tools/scan.h"

namespace twinkle::text {

#define TOOL_FORMAT(name) ToolFormat name();  // defined in <name>.cpp
#include "twinkle/text/tools/formats.def"
#undef TOOL_FORMAT

std::span<const ToolFormat> tool_formats() {
  static const std::array kFormats = {
#define TOOL_FORMAT(name) name(),
#include "twinkle/text/tools/formats.def"
#undef TOOL_FORMAT
  };
  return kFormats;
}

const ToolFormat& tool_format(std::string_view name) {
  const std::span<const ToolFormat> all = tool_formats();
  const auto found = std::ranges::find(all, name, &ToolFormat::name);
  if (found != all.end()) return *found;
  std::string known;
  for (const ToolFormat& format : all) known.append(known.empty() ? "" : ", ").append(format.name);
  fail(Code::kNotFound, "text: there is no format of tool calls '", name, "'; there are ", known);
}

bool ToolFormat::is_in(std::string_view text) const {
  return detects != nullptr ? detects(text) : !parts(text).empty();
}

std::vector<ToolCall> ToolFormat::calls(std::string_view text) const {
  std::vector<ToolCall> out;
  for (ToolPart& part : parts(text))
    if (part.call) out.push_back(std::move(*part.call));
  return out;
}

std::string ToolFormat::cleaned(std::string_view text) const {
  std::string out;
  size_t at = 0;
  for (const ToolPart& part : parts(text)) {
    out += text.substr(at, part.begin - at);
    at = part.end;
  }
  out += text.substr(at);
  out.resize(right_stripped(out).size());
  return out;
}

std::optional<std::string_view> ToolFormat::result_in(std::string_view text) const {
  return result != nullptr ? result(text) : std::nullopt;
}

}  // namespace twinkle::text
