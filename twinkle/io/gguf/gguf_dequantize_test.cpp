#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "twinkle/io/gguf/gguf_for_test.h"

namespace twinkle {
namespace {

TEST(GgufDequantize, KnowsEveryTypeByHandComputedBlocks) {
  std::string nibbles(16, '\0');
  nibbles[0] = static_cast<char>(0xF1);   // value 0 is 1, value 16 is 15
  nibbles[15] = static_cast<char>(0x80);  // value 15 is 0, value 31 is 8
  const auto q4_0 = values_of(GgufType::kQ4_0, raw(kHalf) + nibbles, 32);
  EXPECT_EQ(q4_0[0], 0.5F * (1 - 8));
  EXPECT_EQ(q4_0[16], 0.5F * (15 - 8));
  EXPECT_EQ(q4_0[15], -4.0F);
  EXPECT_EQ(q4_0[31], 0.0F);
  const auto q4_1 = values_of(GgufType::kQ4_1, raw(kHalf) + raw(kMinusTwo) + nibbles, 32);
  EXPECT_EQ(q4_1[0], 0.5F * 1 - 2);
  EXPECT_EQ(q4_1[16], 0.5F * 15 - 2);
  EXPECT_EQ(q4_1[31], 0.5F * 8 - 2);
  EXPECT_EQ(q4_1[1], -2.0F);
  std::string bytes(32, '\0');
  bytes[0] = -128;
  bytes[31] = 127;
  const auto q8_0 = values_of(GgufType::kQ8_0, raw(kMinusTwo) + bytes + raw(kOne) + bytes, 64);
  EXPECT_EQ(q8_0[0], 256.0F);
  EXPECT_EQ(q8_0[31], -254.0F);
  EXPECT_EQ(q8_0[32], -128.0F);
  EXPECT_EQ(values_of(GgufType::kF32, raw(1.25F), 1)[0], 1.25F);
  EXPECT_EQ(values_of(GgufType::kBF16, raw<uint16_t>(0xBF80), 1)[0], -1.0F);
}

TEST(GgufDequantize, ReadsEveryKindOfHalf) {
  const auto half = [](uint16_t bits) { return values_of(GgufType::kF16, raw(bits), 1)[0]; };
  EXPECT_EQ(half(0x3555), 0.333251953125F);
  EXPECT_EQ(half(0x0001), std::ldexp(1.0F, -24));
  EXPECT_EQ(half(0x83FF), -1023 * std::ldexp(1.0F, -24));
  EXPECT_EQ(half(0x0400), std::ldexp(1.0F, -14));
  EXPECT_EQ(half(0x7BFF), 65504.0F);
  EXPECT_EQ(half(0xFC00), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(half(0x7E00)));
  EXPECT_TRUE(std::signbit(half(0x8000)));
}

TEST(GgufDequantize, RoundsToTheNearestBf16WithTiesToEven) {
  EXPECT_EQ(bf16_of(1.0F), 0x3F80);
  EXPECT_EQ(bf16_of(1.0F + 0x1p-8F), 0x3F80);             // a tie, down to even
  EXPECT_EQ(bf16_of(1.0F + 3 * 0x1p-8F), 0x3F82);         // a tie, up to even
  EXPECT_EQ(bf16_of(1.0F + 0x1p-8F + 0x1p-20F), 0x3F81);  // just above
  EXPECT_EQ(bf16_of(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(bf16_of(std::numeric_limits<float>::quiet_NaN()) & 0x7FC0, 0x7FC0);
}

}  // namespace
}  // namespace twinkle
