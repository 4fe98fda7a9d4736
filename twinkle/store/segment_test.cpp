#include "twinkle/store/segment.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "twinkle/store/crc32c.h"

namespace twinkle::store {
namespace {

// One record, and `behind` bytes of another.
std::string record_of(size_t size, size_t behind = 0) {
  std::mt19937 random(static_cast<uint32_t>(size));
  std::string payload(size, '\0');
  for (char& c : payload) c = static_cast<char>(random());
  const Header header = header_of({.sequence = 7, .kind = 2, .version = 3, .payload = payload});
  return std::string(header.data(), header.size()) + payload + std::string(behind, '\x01');
}

TEST(Segment, KnowsARecordOfWhichAByteOfTheLengthIsDamaged) {
  for (const size_t size : {0, 1, 200, 255, 256, 70'000}) {
    for (const size_t behind : {0, 5, 300}) {
      const std::string whole = record_of(size, behind);
      for (size_t at = 0; at < 4; ++at) {
        for (const int other : {1, 0x80, 0xff}) {
          std::string bytes = whole;
          bytes[at] = static_cast<char>(bytes[at] ^ other);
          EXPECT_TRUE(is_length_damaged(bytes, crc32c)) << size << " " << behind << " " << at;
          bytes[(at + 1) % 4] = static_cast<char>(bytes[(at + 1) % 4] ^ other);
          EXPECT_FALSE(is_length_damaged(bytes, crc32c)) << size << " " << behind << " " << at;
        }
      }
      std::string bytes = whole;
      bytes[9] = static_cast<char>(bytes[9] ^ 1);  // in its sequence
      EXPECT_FALSE(is_length_damaged(bytes, crc32c));
    }
  }
  EXPECT_FALSE(is_length_damaged(record_of(0).substr(0, kHeaderBytes - 1), crc32c));
}

TEST(Segment, ATornRecordIsReadOnceThoughItsLengthMayBeWrongInAThousandWays) {
  std::string torn = record_of(0xfefe - 11);
  torn.pop_back();
  size_t num_bytes = 0, num_calls = 0;
  EXPECT_FALSE(is_length_damaged(torn, [&](std::string_view bytes, uint32_t crc) {
    num_bytes += bytes.size();
    ++num_calls;
    return crc32c(bytes, crc);
  }));
  EXPECT_GT(num_calls, 3U * 500) << "lengths that may have been meant";
  EXPECT_LT(num_bytes, torn.size() + 1024 * kHeaderBytes);
}

}  // namespace
}  // namespace twinkle::store
