// CRC-32C (Castagnoli) as RFC 3720 defines it.
#pragma once
#include <cstdint>
#include <string_view>

namespace twinkle::store {

// The CRC of `bytes`, or of what `crc` is of followed by `bytes`.
uint32_t crc32c(std::string_view bytes, uint32_t crc = 0);

// The same without the processor's instruction for it.
uint32_t crc32c_portable(std::string_view bytes, uint32_t crc = 0);

// The CRC of what `first` is of followed by the `second_bytes` bytes that `second` is of, none of
// which are read: linear algebra over GF(2), as zlib's crc32_combine.
uint32_t crc32c_combined(uint32_t first, uint32_t second, uint64_t second_bytes);

}  // namespace twinkle::store
