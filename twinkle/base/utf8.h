// Whether bytes are UTF-8.
#pragma once
#include <cstddef>
#include <string_view>

namespace twinkle {

// The byte of the first malformed sequence (overlong forms, surrogates and values past U+10FFFF
// count), or npos.
size_t invalid_utf8(std::string_view text);

}  // namespace twinkle
