#include "twinkle/server/tenants/hungry.h"

#include <gtest/gtest.h>

#include <vector>

namespace twinkle::server {
namespace {

TEST(Hungry, WhoWaitsLongestOfThoseThatFindRoomIsFirstWhosesoeverItIs) {
  Hungry hungry;
  hungry.add("a", 100, 1, "large");
  hungry.add("a", 10, 4, "small");
  hungry.add("b", 10, 2, "other's");
  hungry.add("b", 20, 3, "other's, larger");
  const auto has_room = [](const std::string& owner, int64_t bytes) {
    return bytes <= (owner == "a" ? 50 : 15);
  };
  EXPECT_EQ(hungry.take(has_room), "other's");
  EXPECT_EQ(hungry.take(has_room), "small") << "passes the large one, which finds none";
  EXPECT_EQ(hungry.take(has_room), "");
  const auto all = [](const auto&...) { return true; };
  hungry.remove("b", 20, 5);
  hungry.remove("b", 21, 3);
  hungry.remove("c", 1, 1);
  EXPECT_EQ(hungry.take(all), "large");
  hungry.remove("b", 20, 3);
  EXPECT_EQ(hungry.take(all), "");
}

TEST(Hungry, WhoWasPassedOftenEnoughIsPassedNoMore) {
  Hungry hungry;
  hungry.add("a", 100, 1, "large");
  hungry.add("b", 10, 1000, "small");
  int64_t room = 50;
  const auto has_room = [&](const std::string&, int64_t bytes) { return bytes <= room; };
  for (int64_t i = 0; i + 1 < Hungry::kMostPasses; ++i) hungry.passed(2 + i);
  hungry.passed(0);  // older
  EXPECT_FALSE(hungry.is_reserved());
  EXPECT_EQ(hungry.take(has_room), "small");
  hungry.passed(1000);
  hungry.add("b", 10, 1001, "smaller");
  EXPECT_TRUE(hungry.is_reserved());
  EXPECT_FALSE(hungry.may_pass(1001));
  EXPECT_TRUE(hungry.may_pass(1));
  EXPECT_TRUE(hungry.may_pass(0));
  EXPECT_EQ(hungry.take(has_room), "") << "the room is kept";
  hungry.remove("a", 100, 1);
  hungry.add("a", 100, 1, "large");  // asked in vain
  EXPECT_TRUE(hungry.is_reserved());
  room = 100;
  EXPECT_EQ(hungry.take(has_room), "large");
  EXPECT_TRUE(hungry.may_pass(1002));
  EXPECT_EQ(hungry.take(has_room), "smaller");
  hungry.passed(1002);
  EXPECT_FALSE(hungry.is_reserved());
}

TEST(Hungry, OfThousandsThatFindNoRoomOneOfEachOwnerIsAsked) {
  Hungry hungry;
  for (int64_t number = 0; number < 3000; ++number)
    hungry.add(number % 3 == 0 ? "a" : "b", 100 + number % 7, number, "x");
  int num_asked = 0;
  EXPECT_EQ(hungry.take([&](const std::string&, int64_t bytes) {
    EXPECT_EQ(bytes, 100) << "the smallest";
    ++num_asked;
    return false;
  }),
            "");
  EXPECT_EQ(num_asked, 2);
}

}  // namespace
}  // namespace twinkle::server
