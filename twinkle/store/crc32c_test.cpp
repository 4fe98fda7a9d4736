#include "twinkle/store/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace twinkle::store {
namespace {

TEST(Crc32c, IsThatOfRfc3720) {
  std::string rising, falling;
  for (int i = 0; i < 32; ++i) rising += static_cast<char>(i), falling += static_cast<char>(31 - i);
  for (const auto crc : {crc32c, crc32c_portable}) {
    EXPECT_EQ(crc(std::string(32, '\0'), 0), 0x8a9136aaU);
    EXPECT_EQ(crc(std::string(32, '\xff'), 0), 0x62a8ab43U);
    EXPECT_EQ(crc(rising, 0), 0x46dd794eU);
    EXPECT_EQ(crc(falling, 0), 0x113fdb5cU);
    EXPECT_EQ(crc("123456789", 0), 0xe3069283U);
    EXPECT_EQ(crc("", 0), 0U);
  }
}

TEST(Crc32c, IsTheSameInPartsAndWithoutTheInstruction) {
  std::mt19937 random(1);
  for (size_t size = 0; size < 70; ++size) {
    std::string bytes(size, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    const uint32_t whole = crc32c_portable(bytes);
    for (size_t cut = 0; cut <= size; ++cut) {
      const uint32_t first = crc32c(bytes.substr(0, cut));
      EXPECT_EQ(crc32c(bytes.substr(cut), first), whole);
      EXPECT_EQ(crc32c_combined(first, crc32c(bytes.substr(cut)), size - cut), whole);
    }
  }
}

}  // namespace
}  // namespace twinkle::store
