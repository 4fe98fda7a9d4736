#include "twinkle/store/crc32c.h"

#include <array>
#include <cstring>
#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace twinkle::store {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78U;  // the highest power is the lowest bit

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? kPolynomial : 0);
    table[i] = value;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = make_table();

// The product of two polynomials modulo that of the checksum.
uint32_t product(uint32_t a, uint32_t b) {
  uint32_t out = 0;
  for (uint32_t power = 1U << 31; power != 0; power >>= 1) {
    if (a & power) out ^= b;
    b = b >> 1 ^ (b & 1 ? kPolynomial : 0);
  }
  return out;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(std::string_view bytes, uint32_t crc) {
  uint64_t value = ~crc;
  for (; bytes.size() >= 8; bytes.remove_prefix(8)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), 8);
    value = _mm_crc32_u64(value, word);
  }
  uint32_t rest = static_cast<uint32_t>(value);
  for (const char c : bytes) rest = _mm_crc32_u8(rest, static_cast<uint8_t>(c));
  return ~rest;
}
#endif

}  // namespace

uint32_t crc32c_portable(std::string_view bytes, uint32_t crc) {
  crc = ~crc;
  for (const char c : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  return ~crc;
}

uint32_t crc32c(std::string_view bytes, uint32_t crc) {
#if defined(__x86_64__)
  static const bool fast = __builtin_cpu_supports("sse4.2");
  if (fast) return crc32c_sse42(bytes, crc);
#endif
  return crc32c_portable(bytes, crc);
}

uint32_t crc32c_combined(uint32_t first, uint32_t second, uint64_t second_bytes) {
  // A byte behind it multiplies a checksum by x^8: x^(8 n) by repeated squaring.
  for (uint32_t power = 1U << 23; second_bytes != 0; second_bytes >>= 1) {
    if (second_bytes & 1) first = product(first, power);
    power = product(power, power);
  }
  return first ^ second;
}

}  // namespace twinkle::store
