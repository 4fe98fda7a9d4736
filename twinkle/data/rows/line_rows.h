// The rows of a file of lines, .jsonl or .txt, one after the other: the file may be larger than
// memory, and a row comes before a bad one behind it is read. Not thread-safe.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "twinkle/base/file.h"
#include "twinkle/data/rows/row.h"

namespace twinkle::data {

class LineRows {
 public:
  // A .txt file has a row {"text": line} for every line, another one JSON lines. `block_bytes` are
  // read at a time (a longer line is held whole). Error kNotFound; kInvalid: as File's.
  explicit LineRows(const std::filesystem::path& file, size_t block_bytes = size_t{1} << 20);

  // The next row; none at the end. Error kInvalid: file, line and cause, in the words of
  // read_text_rows and read_jsonl_rows.
  std::optional<Row> next();

  // The place of the row that came last: "data.jsonl line 7".
  std::string where() const { return name_ + " line " + std::to_string(line_); }

 private:
  // The next line without its end, until the next call; none at the end.
  std::optional<std::string_view> next_line();
  Row text_row(std::string_view line);

  std::string name_, first_line_;
  bool is_text_;
  File file_;
  size_t block_bytes_;
  int64_t num_read_ = 0;  // bytes
  std::string block_;
  size_t begin_ = 0;  // the next line's, in block_
  int64_t line_ = 0;  // that came last, from 1
};

}  // namespace twinkle::data
