// Rows to JSONL or CSV, so that reading them gives equal rows. The file appears whole or not at
// all.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

#include "twinkle/data/rows/row.h"

namespace twinkle::data {

// The file's text. `format` is "jsonl", "json", which is the same, or "csv". CSV has the columns of
// all rows in order of appearance; lists and objects are written into cells as JSON. Error
// kInvalid: another format; NaN or infinity (JSON has none).
std::string format_rows(const Rows& rows, std::string_view format);

// `format` empty: by the file's extension.
void write_rows(const Rows& rows, const std::filesystem::path& file, std::string_view format = "");

}  // namespace twinkle::data
