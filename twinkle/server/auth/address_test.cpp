#include "twinkle/server/auth/address.h"

#include <gtest/gtest.h>

namespace twinkle::server {
namespace {

TEST(Address, LoopbackIsWhatThisMachineAloneReaches) {
  for (const char* const own : {"127.0.0.1", "127.8.9.10", "::1"})
    EXPECT_TRUE(is_loopback(own)) << own;
  for (const char* const other : {"0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "localhost", ""})
    EXPECT_FALSE(is_loopback(other)) << other;
}

TEST(Address, AnAddressOfVersion6IsBracketedInAUrl) {
  EXPECT_EQ(url_of("127.0.0.1", 80), "http://127.0.0.1:80");
  EXPECT_EQ(url_of("::1", 8000), "http://[::1]:8000");
  EXPECT_EQ(url_of("fe80::1%eth0", 8000), "http://[fe80::1%25eth0]:8000") << "RFC 6874";
}

}  // namespace
}  // namespace twinkle::server
