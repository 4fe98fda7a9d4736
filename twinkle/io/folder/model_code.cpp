#include "twinkle/io/folder/model_code.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "twinkle/base/encoding/text_fault.h"
#include "twinkle/base/file.h"
#include "twinkle/base/json.h"

namespace twinkle {
namespace {

constexpr const char* kConfigs[] = {"config.json", "tokenizer_config.json",
                                    "preprocessor_config.json", "video_preprocessor_config.json",
                                    "processor_config.json"};

bool is_a_file(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

// The modules of an auto_map, whose values are "module.Class" or lists of them; older tokenizers
// have no more than the list.
void add_modules(const Json& map, std::vector<std::string>& out) {
  if (map.is_object()) {
    for (const auto& [key, value] : map.get_object()) add_modules(value, out);
  } else if (map.is_array()) {
    for (const Json& value : map.get_array()) add_modules(value, out);
  } else if (map.is_string()) {
    const std::string_view path(map.get_string());
    const size_t dot = path.rfind('.');
    if (dot != std::string_view::npos) out.emplace_back(path.substr(0, dot));
  }
}

std::string_view without_blanks(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
}

std::string_view without_comments(std::string_view text) {
  text = without_blanks(text);
  while (text.starts_with('#'))
    text = without_blanks(text.substr(std::min(text.find('\n'), text.size())));
  return text;
}

// Its letters, digits and "_" up to anything else.
std::string_view leading_name(std::string_view text) {
  size_t size = 0;
  while (size < text.size() &&
         (std::isalnum(static_cast<unsigned char>(text[size])) != 0 || text[size] == '_'))
    ++size;
  return text.substr(0, size);
}

// The modules beside it that Python's next line imports: "from .x import y", "from . import x, y",
// the names in brackets over several lines, too.
void add_imports(std::string_view text, std::vector<std::string>& out) {
  constexpr std::string_view kFrom = "from", kImport = "import";
  std::string_view line = without_blanks(text.substr(0, text.find('\n')));
  const bool from = line.starts_with(kFrom);
  if (!from && !line.starts_with(kImport)) return;
  line = without_blanks(line.substr(from ? kFrom.size() : kImport.size()));
  if (!line.starts_with('.')) return;
  line = without_blanks(line.substr(1));
  const std::string_view module = leading_name(line);
  if (!from || module != kImport) {
    out.emplace_back(module);  // empty, and no file, for a package above this one
    return;
  }
  line = without_blanks(line.substr(kImport.size()));
  const bool in_brackets = line.starts_with('(');
  if (in_brackets) line = text.substr(static_cast<size_t>(line.data() - text.data()) + 1);
  while (true) {
    line = without_comments(line);
    const std::string_view name = leading_name(line);
    out.emplace_back(name);
    line = without_comments(line.substr(name.size()));
    if (line.starts_with("as")) {
      line = without_comments(line.substr(2));
      line = without_comments(line.substr(leading_name(line).size()));
    }
    if (!line.starts_with(',')) return;
    line.remove_prefix(1);
  }
}

}  // namespace

std::set<std::string> model_code_in(const std::filesystem::path& folder) {
  std::vector<std::string> modules;
  for (const char* file : kConfigs) {
    if (!is_a_file(folder / file)) continue;
    const std::optional<Json> fields = json_in(without_mark(read_file(folder / file)));
    if (const Json* map = fields ? find(*fields, "auto_map") : nullptr) add_modules(*map, modules);
  }
  std::set<std::string> out;
  while (!modules.empty()) {
    const std::string module = modules.back(), name = module + ".py";
    modules.pop_back();
    // One of another repository is "owner/name--module".
    constexpr std::string_view kNoModules("/\0", 2);
    if (module.empty() || module.find_first_of(kNoModules) != std::string::npos ||
        !is_a_file(folder / name))
      continue;
    if (!out.insert(name).second) continue;
    const std::string text = read_file(folder / name);
    for (std::string_view rest = text; !rest.empty();) {
      add_imports(rest, modules);
      rest.remove_prefix(std::min(rest.find('\n'), rest.size() - 1) + 1);
    }
  }
  return out;
}

}  // namespace twinkle
