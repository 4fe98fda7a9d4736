#include "twinkle/server/auth/foreign.h"

#include <gtest/gtest.h>

namespace twinkle::server {
namespace {

std::string of(const std::string& host, const std::string& origin = "") {
  Head head;
  if (!host.empty()) head.headers["host"] = host;
  if (!origin.empty()) head.headers["origin"] = origin;
  return foreign(head);
}

TEST(Foreign, ThisMachinesOwnNamesAndAddressesAreNot) {
  for (const char* host : {"", "127.0.0.1", "127.0.0.1:8000", "LocalHost:80", "localhost",
                           "a.localhost:1", "[::1]:8000", "10.0.0.1"})
    EXPECT_EQ(of(host), "") << host;
  EXPECT_EQ(of("localhost:8000", "http://localhost:8000"), "");
}

TEST(Foreign, ANameThatMayBeBoundToAnyAddressIsRefused) {
  for (const char* host : {"evil.example", "evil.example:8000", "127.0.0.1.evil.example",
                           "localhost.evil.example", "evillocalhost", "[evil]", "[", ":8000"})
    EXPECT_NE(of(host), "") << host;
  EXPECT_EQ(of("evil.example"),
            "server: Host is 'evil.example', and a server without keys answers to localhost and IP "
            "addresses only; use http://127.0.0.1 or the like, or make keys (twinkle keys create) "
            "and start the server again");
}

TEST(Foreign, APageOfAnotherSiteIsRefused) {
  for (const char* origin :
       {"http://evil.example", "null", "http://127.0.0.1:9000", "file://127.0.0.1:8000"})
    EXPECT_NE(of("127.0.0.1:8000", origin), "") << origin;
  EXPECT_EQ(of("127.0.0.1:8000", "null"),
            "server: Origin is 'null', and a server without keys takes no requests from pages of "
            "other sites; leave Origin out, or make keys (twinkle keys create) and start the "
            "server again");
}

}  // namespace
}  // namespace twinkle::server
