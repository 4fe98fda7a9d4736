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
