// Rows to JSONL or CSV, so that reading them gives equal rows. A file that is written appears whole
// or not at all.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "twinkle/data/rows/row.h"

namespace twinkle::data {

// The file's text. `format` is "jsonl", "json", which is the same, or "csv". CSV has the columns of
// all rows in order of appearance; lists and objects are written into cells as JSON. Error
// kInvalid: another format; NaN or infinity (JSON has none).
std::string format_rows(const Rows& rows, std::string_view format);

// Makes the folder of a file that is to be written. Error kInvalid: no file can be written there,
// or the path is a folder's.
void make_place(const std::filesystem::path& file);

// `format` empty: by the file's extension. Errors as the two above.
void write_rows(const Rows& rows, const std::filesystem::path& file, std::string_view format = "");

// Rows that are added one after the other to a file of JSON lines, which has them in batches.
class LineWriter {
 public:
  LineWriter(std::filesystem::path file, int64_t batch_size);

  // Keeps the row, or writes it with those that are kept, as flush() does.
  void add(Row row);
  // Writes what is kept; the file is there from now on, and what was in it before is gone. Error
  // kInvalid: NaN or infinity; kInternal: the system refuses.
  void flush();

 private:
  std::filesystem::path file_;
  int64_t batch_size_;
  Rows kept_;
  bool is_begun_ = false;
};

}  // namespace twinkle::data
