// Files of text as rows: {"text": line} for every line, empty ones too.
#pragma once
#include <filesystem>

#include "twinkle/data/rows/row.h"

namespace twinkle::data {

// UTF-8 with or without byte order mark, LF or CRLF. Error kNotFound; kInvalid: file, line and
// byte of what is no UTF-8.
Table read_text_rows(const std::filesystem::path& file);

// Error kInvalid: `text` of the file `name` is no text in UTF-8, or a pointer of Git LFS.
void refuse_no_text(std::string_view text, const std::string& name);

}  // namespace twinkle::data
