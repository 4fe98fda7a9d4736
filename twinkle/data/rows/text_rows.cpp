#include "twinkle/data/rows/text_rows.h"

#include <algorithm>

#include "twinkle/base/encoding/text_fault.h"
#include "twinkle/base/encoding/utf8.h"
#include "twinkle/base/file.h"

namespace twinkle::data {

void refuse_no_text(std::string_view text, const std::string& name) {
  require(!is_lfs_pointer(text), Code::kInvalid, "data: ", name, " is ", kLfsPointer);
  const std::string fault = encoding_fault(text);
  if (fault.empty()) return;
  const std::string_view before = text.substr(0, std::min(invalid_utf8(text), text.find('\0')));
  fail(Code::kInvalid, "data: ", name, " line ", 1 + std::ranges::count(before, '\n'), ", byte ",
       before.size() - before.rfind('\n'), ": ", fault);  // npos is -1
}

Table read_text_rows(const std::filesystem::path& file) {
  require(is_there(file), Code::kNotFound, "data: cannot open ", file.string());
  const std::string whole = read_file(file, "data");
  std::string_view text = without_mark(whole);
  Table table{.name = file.string(), .unit = "line"};
  refuse_no_text(text, table.name);
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    table.rows.push_back({{"text", line}});
    table.places.push_back(std::ssize(table.rows));
  }
  return table;
}

}  // namespace twinkle::data
