#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>

#include "twinkle/io/gguf/gguf_writer.h"

namespace twinkle {
namespace {

constexpr int64_t kQ8Values = 32, kQ8Bytes = 34;

// The nearest F16, ties to even; beyond 65504 it is infinite.
uint16_t f16_of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000U);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<uint16_t>(sign | 0x7E00U);
  if (magnitude >= 0x477FF000U) return static_cast<uint16_t>(sign | 0x7C00U);
  if (magnitude < 0x38800000U) {  // subnormal: a multiple of 2^-24, by float's own rounding
    const float small = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(small) - 0x3F000000U));
  }
  const uint32_t rounded = magnitude + 0xFFFU + (magnitude >> 13 & 1U) - (112U << 23);
  return static_cast<uint16_t>(sign | rounded >> 13);
}

bool is_finite_f16(uint16_t half) { return (half & 0x7C00U) != 0x7C00U; }

// quantize_row_q8_0_ref of ggml: scale, then bytes rounded half away from zero.
bool q8_0_of(const float* values, std::byte* out) {
  float largest = 0;
  for (int64_t i = 0; i < kQ8Values; ++i) largest = std::max(largest, std::abs(values[i]));
  const float scale = largest / 127;
  const float inverse = scale != 0 ? 1 / scale : 0;
  const uint16_t half = f16_of(scale);
  std::memcpy(out, &half, sizeof half);
  for (int64_t i = 0; i < kQ8Values; ++i)
    out[2 + i] = static_cast<std::byte>(static_cast<int8_t>(std::round(values[i] * inverse)));
  return is_finite_f16(half);
}

}  // namespace

bool quantize(GgufType type, std::span<const float> values, std::span<std::byte> out) {
  const auto finite = [](float value) { return std::isfinite(value); };
  if (!std::ranges::all_of(values, finite)) return false;
  const int64_t count = std::ssize(values);
  assert(count / block_of(type).values * block_of(type).bytes == std::ssize(out));
  bool fits = true;
  switch (type) {
    case GgufType::kF32:
      std::memcpy(out.data(), values.data(), out.size());
      return true;
    case GgufType::kF16:
      for (int64_t i = 0; i < count; ++i) {
        const uint16_t half = f16_of(values[i]);
        fits = fits && is_finite_f16(half);
        std::memcpy(out.data() + 2 * i, &half, sizeof half);
      }
      return fits;
    case GgufType::kQ8_0:
      for (int64_t i = 0; i < count / kQ8Values; ++i)
        fits = q8_0_of(values.data() + i * kQ8Values, out.data() + i * kQ8Bytes) && fits;
      return fits;
    default:
      assert(false);
      return false;
  }
}

}  // namespace twinkle
