// CRC-32C (Castagnoli) as RFC 3720 defines it.
#pragma once
#include <cstdint>
#include <string_view>

namespace twinkle::store {

// Of `bytes`, or of what `crc` is of followed by `bytes`.
uint32_t crc32c(std::string_view bytes, uint32_t crc = 0);

// The same without the processor's instruction for it.
uint32_t crc32c_portable(std::string_view bytes, uint32_t crc = 0);

}  // namespace twinkle::store
