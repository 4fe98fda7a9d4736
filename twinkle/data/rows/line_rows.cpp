#include "twinkle/data/rows/line_rows.h"

#include <algorithm>
#include <span>

#include "twinkle/base/encoding/text_fault.h"
#include "twinkle/base/encoding/utf8.h"
#include "twinkle/data/rows/files.h"
#include "twinkle/data/rows/json_rows.h"

namespace twinkle::data {

LineRows::LineRows(const std::filesystem::path& file, size_t block_bytes)
    : name_(file.string()),
      is_text_(extension_of(file) == ".txt"),
      file_(file, "data"),
      block_bytes_(block_bytes) {}

std::optional<std::string_view> LineRows::next_line() {
  size_t end = block_.find('\n', begin_);
  while (end == block_.npos && num_read_ < file_.size()) {
    block_.erase(0, begin_);
    begin_ = 0;
    const size_t had = block_.size();
    const auto left = static_cast<size_t>(file_.size() - num_read_);
    block_.resize(had + std::min(block_bytes_, left));
    const std::span<char> added = std::span<char>(block_).subspan(had);
    file_.read_at(num_read_, std::as_writable_bytes(added));
    num_read_ += std::ssize(added);
    end = block_.find('\n', had);
  }
  if (begin_ == block_.size()) return std::nullopt;
  const std::string_view line = std::string_view(block_).substr(begin_, end - begin_);
  begin_ += std::min(line.size() + 1, block_.size() - begin_);
  return ++line_ == 1 ? without_mark(line) : line;
}

Row LineRows::text_row(std::string_view line) {
  require(line_ > 1 || !is_lfs_pointer(line), Code::kInvalid, "data: ", name_, " is ", kLfsPointer);
  const size_t at = std::min(invalid_utf8(line), line.find('\0'));
  if (at != line.npos)  // UTF-16 is told by how the file begins
    fail(Code::kInvalid, "data: ", where(), ", byte ", at + 1, ": ",
         encoding_fault(first_line_ + std::string(line)));
  if (line_ == 1) first_line_ = line;
  if (line.ends_with('\r')) line.remove_suffix(1);
  return {{"text", line}};
}

std::optional<Row> LineRows::next() {
  while (const std::optional<std::string_view> line = next_line()) {
    if (is_text_) return text_row(*line);
    if (line->find_first_not_of(" \t\r\n") != line->npos) return parse_line(*line, name_, line_);
  }
  return std::nullopt;
}

}  // namespace twinkle::data
