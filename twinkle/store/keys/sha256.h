// SHA-256 (FIPS 180-4) of bytes in memory.
#pragma once
#include <string>
#include <string_view>

namespace twinkle::store {

// 64 hexadecimal digits, in lower case.
std::string sha256(std::string_view bytes);

}  // namespace twinkle::store
