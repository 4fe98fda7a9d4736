#include "twinkle/engine/memory/held_bytes.h"

#include <gtest/gtest.h>

#include <optional>

#include "twinkle/base/error.h"

namespace twinkle::engine {
namespace {

template <class F>
std::string refused(Code code, F&& work) {
  try {
    work();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, code);
    return e.what();
  }
  return "no error";
}

std::string refusal(HeldBytes& held, const std::string& tenant, int64_t bytes, Code code) {
  return refused(code, [&] { held.reserve(tenant, bytes); });
}
std::string growth(HeldBytes::Room& room, int64_t bytes, Code code) {
  return refused(code, [&] { room.resize(bytes); });
}

TEST(HeldBytes, ATenantAndAllTogetherHoldNoMoreThanTheirLimits) {
  HeldBytes held(100, 150);
  auto first = held.reserve("a", 60);
  EXPECT_EQ(refusal(held, "a", 41, Code::kBusy),
            "engine: tenant 'a' holds 60 bytes in operations and results, this one takes 41, "
            "max_queued_bytes is 100; take some of their results, or drop them");
  const auto second = held.reserve("b", 80);
  EXPECT_EQ(refusal(held, "a", 11, Code::kBusy),
            "engine: all tenants hold 140 bytes in operations and results, this one of tenant 'a' "
            "takes 11, max_queued_bytes_total is 150; try again later");
  EXPECT_EQ(refusal(held, "a", 101, Code::kInvalid),
            "engine: an operation of tenant 'a' takes 101 bytes with its files and its result, "
            "max_queued_bytes is 100 and max_queued_bytes_total 150; submit less at once, or raise "
            "them");
  EXPECT_EQ(held.in_all(), 140) << "what is refused takes nothing";
  first.reset();
  EXPECT_EQ(held.in_all(), 80);
  EXPECT_EQ(refusal(held, "a", 70, Code::kBusy), "no error");
}

TEST(HeldBytes, WhatAloneIsBeyondTheLimitsMayGoAlone) {
  HeldBytes held(100, 150);
  auto other = held.reserve("a", 1);
  EXPECT_EQ(refused(Code::kBusy, [&] { held.reserve("a", 1000, Beyond::kAlone); }),
            "engine: tenant 'a' holds 1 bytes in operations and results, this one takes 100, "
            "max_queued_bytes is 100; take some of their results, or drop them");
  other.reset();
  const auto alone = held.reserve("a", 1000, Beyond::kAlone);
  EXPECT_EQ(held.in_all(), 100);
  alone->resize(2000);
  EXPECT_EQ(held.in_all(), 100);
  alone->resize(10);
  EXPECT_EQ(held.in_all(), 10);
}

TEST(HeldBytes, ARoomGrowsWithinTheLimitsAndOutlivesThem) {
  std::optional<HeldBytes> held(std::in_place, 100, 100);
  const auto room = held->reserve("a", 10);
  room->resize(90);
  EXPECT_EQ(growth(*room, 101, Code::kInvalid),
            "engine: an operation of tenant 'a' takes 101 bytes with its files and its result, "
            "max_queued_bytes is 100 and max_queued_bytes_total 100; submit less at once, or raise "
            "them")
      << "it alone is too large, which is not to wait for anything";
  const auto other = held->reserve("a", 5);
  EXPECT_EQ(growth(*room, 96, Code::kBusy),
            "engine: tenant 'a' holds 5 bytes in operations and results, this one takes 96, "
            "max_queued_bytes is 100; take some of their results, or drop them");
  other->resize(0);
  EXPECT_EQ(held->in_all(), 90) << "as before";
  room->resize(0);
  EXPECT_EQ(held->in_all(), 0);
  room->resize(5);
  room->give_back(3);
  EXPECT_EQ(held->in_all(), 2);
  room->give_back(3);
  EXPECT_EQ(held->in_all(), 0);
  room->resize(5);
  held.reset();
}

}  // namespace
}  // namespace twinkle::engine
