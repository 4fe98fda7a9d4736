// CSV by RFC 4180, strictly: quoted cells may hold commas, quotes ("") and newlines; LF and CRLF;
// UTF-8 with or without byte order mark. Cells may also be separated by semicolons or tabs. Why not
// Arrow's reader: docs/decisions/0002-csv.md.
#pragma once
#include <filesystem>
#include <string_view>

#include "twinkle/data/rows/renames.h"

namespace twinkle::data {

// The first record names the columns, or, with `renames`, has their old names. What is most often
// in it outside of quotes, a comma, a semicolon or a tab, is the separator; of several the comma,
// and of a name that ends in .tsv always the tab. Another than the comma is the table's note.
//
// A column whose every cell is a JSON integer, number or
// true/false becomes int64, double or bool; any other column is strings, as written, where an empty
// cell is the empty string. So is a column with a quoted cell, and one whose name is that of a
// chat's text (prompt, completion, ...), whatever its cells hold. Blank lines are skipped. `name`
// is for errors. Error kInvalid: file, line (from 1) and cause: a record of more or fewer
// cells than columns, text around quotes, a quote that never closes, two
// columns of one name, invalid UTF-8.
Table parse_csv(std::string_view text, const std::string& name, const Renames& renames = {});
Table read_csv_rows(const std::filesystem::path& file, const Renames& renames = {});  // kNotFound

}  // namespace twinkle::data
