// A warp's product of tensor cores for the emulation: lanes show each other their operands.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "cuda_runtime.h"

[[gnu::noinline]] inline float __fmul_rn(float a, float b) { return a * b; }
inline float __expf(float x) { return std::exp(x); }
inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }

// Bytes of x (0 to 3) and y (4 to 7) by the selector's four digits, the lowest byte first.
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
  const uint64_t both = static_cast<uint64_t>(y) << 32 | x;
  uint32_t out = 0;
  for (unsigned i = 0; i < 4; ++i) {
    out |= static_cast<uint32_t>(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  }
  return out;
}

namespace twinkle::kernels::emulation {

// c [16, 8] += a [16, 16] b [16, 8], held as PTX has it for mma.m16n8k16.
inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const unsigned lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const auto half = [](uint32_t word, unsigned i) {
    return std::bit_cast<float>(i == 0 ? word << 16 : word & 0xffff0000u);
  };
  struct Words {
    uint32_t a[4], b[2];
  };
  float of_a[2][16], of_b[2][16];  // rows g and g + 8; columns 2t and 2t + 1
  const Words mine{{a[0], a[1], a[2], a[3]}, {b0, b1}};
  std::memcpy(exchange_slot(lane), &mine, sizeof mine);
  warp_barrier();
  for (unsigned other = 0; other < 4; ++other) {
    const auto& words = static_cast<const Words*>(exchange_slot(4 * g + other))->a;
    for (unsigned i = 0; i < 2; ++i) {
      for (unsigned row = 0; row < 2; ++row) {
        of_a[row][2 * other + i] = half(words[row], i);
        of_a[row][2 * other + 8 + i] = half(words[row + 2], i);
      }
    }
  }
  for (unsigned column = 0; column < 2; ++column) {
    for (unsigned other = 0; other < 4; ++other) {
      const void* const slot = exchange_slot(4 * (2 * t + column) + other);
      const auto& words = static_cast<const Words*>(slot)->b;
      for (unsigned i = 0; i < 2; ++i) {
        of_b[column][2 * other + i] = half(words[0], i);
        of_b[column][2 * other + 8 + i] = half(words[1], i);
      }
    }
  }
  end_exchange();
  for (unsigned row = 0; row < 2; ++row) {
    for (unsigned column = 0; column < 2; ++column) {
      float& sum = c[2 * row + column];
      for (unsigned k = 0; k < 16; ++k) sum += of_a[row][k] * of_b[column][k];
    }
  }
}

}  // namespace twinkle::kernels::emulation
