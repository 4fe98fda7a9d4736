// JSON and JSONL files as rows. Rows are parsed once, on all cores, and doubles exactly. Knows
// nothing of templates or training. Not thread-safe per object.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

#include "twinkle/base/file.h"
#include "twinkle/data/rows/row.h"

namespace twinkle::data {

// The row of a line of a JSONL file, which need not be read yet as a whole. Error kInvalid: file,
// line, column (bytes, from 1) and cause; numbers beyond the doubles, integers beyond 64 bits.
// Numbers with a fraction are correctly rounded.
Row parse_line(std::string_view text, const std::string& file, int64_t line);

// Streams a JSONL file: one object per line, blank lines skipped, a byte order mark allowed.
class JsonlReader {
 public:
  // Errors as File's. `block_bytes` is how much text is held at a time (a longer line
  // is held whole).
  explicit JsonlReader(const std::filesystem::path& file, size_t block_bytes = size_t{16} << 20);

  // Appends the next block's rows to `table`; false at the end of the file. Error kInvalid: file,
  // line and cause of the first bad line; the table is unchanged.
  bool next(Table& table);

 private:
  std::string name_;
  File file_;
  int64_t at_ = 0;  // bytes read
  size_t block_bytes_;
  std::string pending_;  // the cut line at the end of the last block
  int64_t line_ = 1;     // line of pending_'s first byte
  bool first_ = true;
};

// Reads a JSON file: an array of objects, an object of equally long columns on several lines, or
// JSONL under a .json name, of which an object on the only line is the only row. Error kInvalid:
// file, line, of an array also the row (from 0), and cause, as parse_line has them; kNotFound.
Table read_json_rows(const std::filesystem::path& file);
Table read_jsonl_rows(const std::filesystem::path& file);

}  // namespace twinkle::data
