#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>

#include "twinkle/io/gguf/gguf.h"

namespace twinkle {
namespace {

constexpr int64_t kBlock = 32;  // values per block of every quantised type here

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

float f16_at(const std::byte* at) {
  const uint32_t half = load<uint16_t>(at);
  const uint32_t sign = (half & 0x8000U) << 16, exponent = half >> 10 & 31U,
                 mantissa = half & 1023U;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000U | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112U) << 23 | mantissa << 13);
  const float small = std::ldexp(static_cast<float>(mantissa), -24);  // subnormal: exact in fp32
  return sign != 0 ? -small : small;
}

float bf16_at(const std::byte* at) {
  return std::bit_cast<float>(static_cast<uint32_t>(load<uint16_t>(at)) << 16);
}

// d * (q - 8); low nibbles are the first 16 values, high ones the others.
void q4_0_block(const std::byte* block, float* out) {
  const float d = f16_at(block);
  for (int64_t i = 0; i < kBlock / 2; ++i) {
    const auto pair = std::to_integer<int>(block[2 + i]);
    out[i] = d * static_cast<float>((pair & 15) - 8);
    out[i + kBlock / 2] = d * static_cast<float>((pair >> 4) - 8);
  }
}

// d * q + m, in the same order. The product is rounded before the sum, as in ggml's reference: the
// -ffp-contract default would fuse them.
void q4_1_block(const std::byte* block, float* out) {
  const float d = f16_at(block), m = f16_at(block + 2);
  std::array<float, 16> values{};
  for (int q = 0; q < 16; ++q) {
    const volatile float product = d * static_cast<float>(q);
    values[q] = product + m;
  }
  for (int64_t i = 0; i < kBlock / 2; ++i) {
    const auto pair = std::to_integer<unsigned>(block[4 + i]);
    out[i] = values[pair & 15U];
    out[i + kBlock / 2] = values[pair >> 4];
  }
}

// d * q
void q8_0_block(const std::byte* block, float* out) {
  const float d = f16_at(block);
  for (int64_t i = 0; i < kBlock; ++i) out[i] = d * static_cast<float>(load<int8_t>(block + 2 + i));
}

template <int64_t kValues, int64_t kBytes, class Decode>
void blocks(std::span<const std::byte> in, std::span<float> out, Decode decode) {
  const int64_t count = std::ssize(out) / kValues;
  assert(count * kBytes == std::ssize(in));
  for (int64_t i = 0; i < count; ++i) decode(in.data() + i * kBytes, out.data() + i * kValues);
}

}  // namespace

void dequantize(GgufType type, std::span<const std::byte> in, std::span<float> out) {
  const auto single = [](auto read) {
    return [read](const std::byte* at, float* to) { *to = read(at); };
  };
  switch (type) {
    case GgufType::kF32:
      return blocks<1, 4>(in, out, single(load<float>));
    case GgufType::kF16:
      return blocks<1, 2>(in, out, single(f16_at));
    case GgufType::kBF16:
      return blocks<1, 2>(in, out, single(bf16_at));
    case GgufType::kQ4_0:
      return blocks<kBlock, 18>(in, out, q4_0_block);
    case GgufType::kQ4_1:
      return blocks<kBlock, 20>(in, out, q4_1_block);
    case GgufType::kQ8_0:
      return blocks<kBlock, 34>(in, out, q8_0_block);
  }
}

void read_values(const File& file, const GgufTensor& tensor, int64_t first, std::span<float> out) {
  constexpr int64_t kChunk = int64_t{1} << 16;  // values; whole blocks of every type
  const GgufBlock block = block_of(tensor.type);
  std::vector<std::byte> raw;
  std::vector<float> values;
  while (!out.empty()) {
    const int64_t skipped = first % block.values;
    const int64_t wanted = std::min(std::ssize(out), kChunk - skipped);
    const int64_t num_blocks = (skipped + wanted + block.values - 1) / block.values;
    raw.resize(static_cast<size_t>(num_blocks * block.bytes));
    file.read_at(tensor.begin + first / block.values * block.bytes, raw);
    values.resize(static_cast<size_t>(num_blocks * block.values));
    dequantize(tensor.type, raw, values);
    std::copy_n(values.begin() + skipped, wanted, out.begin());
    first += wanted;
    out = out.subspan(static_cast<size_t>(wanted));
  }
}

uint16_t bf16_of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40U);
  return static_cast<uint16_t>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
}

}  // namespace twinkle
