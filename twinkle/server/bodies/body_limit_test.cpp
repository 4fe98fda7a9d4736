#include "twinkle/server/bodies/body_limit.h"

#include <gtest/gtest.h>

namespace twinkle::server {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

void expect_limit(const BodyOf& of, int64_t max_body_bytes, int64_t bytes, const std::string& why) {
  const BodyLimit limit = body_limit(of, max_body_bytes);
  EXPECT_EQ(limit.bytes, bytes);
  EXPECT_EQ(limit.why, why);
}

TEST(BodyLimit, NamesWhoseItIsAndARemedyThatFitsThePath) {
  constexpr const char* kShort = ", the most of this path; send what it needs and no more";
  expect_limit({.is_short = true}, 256 * kMiB, kMiB / 16, kShort);
  expect_limit({.is_short = true, .is_protobuf = true}, kMiB, kMiB / 16, kShort);
  expect_limit({}, 256 * kMiB, 8 * kMiB, ", the most of JSON; send a shorter request");
  expect_limit({.takes_protobuf = true}, 256 * kMiB, 8 * kMiB,
               ", the most of JSON; this path takes application/x-protobuf");
  expect_limit(
      {.is_protobuf = true, .takes_protobuf = true}, 256 * kMiB, 256 * kMiB,
      ", max_body_bytes; send fewer or shorter examples at once, or have the operator raise it");
  for (const bool is_protobuf : {false, true})
    expect_limit({.is_protobuf = is_protobuf}, kMiB, kMiB,
                 ", max_body_bytes; send a shorter request, or have the operator raise it");
}

}  // namespace
}  // namespace twinkle::server
