// The fault in the bytes of a JSON or CSV file, in the words of whoever wrote it: another
// encoding, a second byte order mark, Python's spellings, a Git LFS pointer in place of the file.
#pragma once
#include <string>
#include <string_view>

namespace twinkle {

inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// `text` without a byte order mark in front, which parse_json and read_json skip, too.
std::string_view without_mark(std::string_view text);

// Git keeps a few lines in place of a large file that was not fetched.
bool is_lfs_pointer(std::string_view bytes);
inline constexpr const char* kLfsPointer =
    "a Git LFS pointer, not the file itself; fetch it with: git lfs pull";

// Why `text` is not UTF-8, or has a NUL character, with a remedy; empty: neither. Text is taken for
// UTF-16 by its mark, or where a quarter of its first 64 bytes are NULs.
std::string encoding_fault(std::string_view text);

// The likely cause of a syntax error of JSON at text[at], with a remedy; empty: none is known.
std::string json_fault(std::string_view text, size_t at);

}  // namespace twinkle
