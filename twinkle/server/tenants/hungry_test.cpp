#include "twinkle/server/tenants/hungry.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace twinkle::server {
namespace {

const Hungry::HasRoom kAll = [](const auto&...) { return true; };
const Hungry::HasLess kNobody = [](const auto&...) { return false; };

TEST(Hungry, WhoWaitsLongestOfThoseThatFindRoomIsFirstWhosesoeverItIs) {
  Hungry hungry(kAll, kNobody);
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
  hungry.remove("b", 20, 5);
  hungry.remove("b", 21, 3);
  hungry.remove("c", 1, 1);
  EXPECT_EQ(hungry.take(kAll), "large");
  hungry.remove("b", 20, 3);
  EXPECT_EQ(hungry.take(kAll), "");
}

TEST(Hungry, WhoWasPassedOftenEnoughIsPassedNoMore) {
  Hungry hungry(kAll, kNobody);
  hungry.add("a", 100, 1, "large");
  hungry.add("b", 10, 1000, "small");
  int64_t room = 50;
  const auto has_room = [&](const std::string&, int64_t bytes) { return bytes <= room; };
  for (int64_t i = 0; i + 1 < Hungry::kMostPasses; ++i) hungry.passed("b", 2 + i);
  hungry.passed("b", 0);  // older
  EXPECT_TRUE(hungry.may_pass("b", 1, 1001));
  EXPECT_EQ(hungry.take(has_room), "small");
  hungry.passed("b", 1000);
  hungry.add("b", 10, 1001, "smaller");
  EXPECT_FALSE(hungry.may_pass("b", 1, 1001));
  EXPECT_TRUE(hungry.may_pass("b", 1, 1));
  EXPECT_TRUE(hungry.may_pass("b", 1, 0));
  EXPECT_EQ(hungry.take(has_room), "") << "the room is kept";
  room = 100;
  EXPECT_EQ(hungry.take(has_room), "large");
  EXPECT_TRUE(hungry.may_pass("b", 1, 1002));
  EXPECT_EQ(hungry.take(has_room), "smaller");
  hungry.passed("b", 1002);
  EXPECT_TRUE(hungry.may_pass("b", 1, 1003));
}

TEST(Hungry, WhoHasLessThanTheOwnerOfOneThatIsPassedNoMorePassesIt) {
  std::map<std::string, int64_t> has{{"a", 50}, {"b", 60}};
  Hungry hungry(kAll, [&](const std::string& owner, int64_t bytes, const std::string& other) {
    return has[owner] + bytes <= has[other];
  });
  hungry.add("a", 100, 1, "large");
  for (int64_t i = 0; i < Hungry::kMostPasses; ++i) hungry.passed("b", 2 + i);
  EXPECT_FALSE(hungry.may_pass("b", 1, 1000));
  EXPECT_FALSE(hungry.may_pass("a", 1, 1000));
  EXPECT_FALSE(hungry.may_pass("c", 51, 1000));
  EXPECT_TRUE(hungry.may_pass("c", 50, 1000));
  hungry.add("b", 10, 1000, "of who has more");
  hungry.add("c", 10, 1001, "of who has less");
  const auto has_room = [](const std::string&, int64_t bytes) { return bytes <= 50; };
  EXPECT_EQ(hungry.take(has_room), "of who has less");
  EXPECT_EQ(hungry.take(has_room), "");
  has["a"] = 0;
  EXPECT_FALSE(hungry.may_pass("c", 1, 1002)) << "nobody passes it now";
}

// It waited for what its owner had, so that the other was counted, and finds room now.
TEST(Hungry, WhoCameBeforeOneThatIsPassedNoMoreGoesFirst) {
  bool has_much = true;
  Hungry hungry([&](const std::string& owner, int64_t) { return owner != "a" || !has_much; },
                kNobody);
  hungry.add("a", 60, 1, "older");
  hungry.add("b", 100, 2, "large");
  for (int64_t i = 0; i < Hungry::kMostPasses; ++i) hungry.passed("c", 1000 + i);
  EXPECT_FALSE(hungry.may_pass("c", 1, 3000));
  has_much = false;
  hungry.add("a", 50, 3, "newer");
  const auto has_room = [](const std::string&, int64_t bytes) { return bytes <= 60; };
  EXPECT_EQ(hungry.take(has_room), "older");
  EXPECT_EQ(hungry.take(has_room), "") << "the rest is kept";
  EXPECT_EQ(hungry.take(kAll), "large");
  EXPECT_EQ(hungry.take(kAll), "newer");
}

TEST(Hungry, WhoWaitsForWhatItsOwnerHasIsPassedNoMoreByThatOwnersAlone) {
  bool has_much = true;
  Hungry hungry([&](const std::string& owner,
                    int64_t bytes) { return owner != "a" || !has_much || bytes <= 50; },
                kNobody);
  hungry.add("a", 100, 1, "large");
  hungry.add("b", 10, 2, "other's");
  for (int64_t i = 0; i < Hungry::kMostPasses; ++i) hungry.passed("c", 1000 + i);
  EXPECT_FALSE(hungry.may_pass("c", 1, 3)) << "the oldest that waits for others was passed";
  const auto has_room = [](const std::string&, int64_t bytes) { return bytes <= 50; };
  EXPECT_EQ(hungry.take(has_room), "other's");
  for (int64_t i = 0; i < Hungry::kMostPasses; ++i) hungry.passed("c", 2000 + i);
  EXPECT_TRUE(hungry.may_pass("c", 1, 3000));
  EXPECT_TRUE(hungry.may_pass("a", 1, 3000));
  for (int64_t i = 0; i < Hungry::kMostPasses; ++i) hungry.passed("a", 3000 + i);
  EXPECT_TRUE(hungry.may_pass("c", 1, 4000));
  EXPECT_FALSE(hungry.may_pass("a", 1, 4000));
  hungry.add("a", 10, 4000, "small");
  EXPECT_EQ(hungry.take(has_room), "");
  has_much = false;
  for (int64_t i = 0; i < Hungry::kMostPasses; ++i) hungry.passed("c", 5000 + i);
  EXPECT_FALSE(hungry.may_pass("c", 1, 6000)) << "it waits for others by now";
  has_much = true;
  EXPECT_TRUE(hungry.may_pass("c", 1, 6000));
  EXPECT_EQ(hungry.take(kAll), "large");
  EXPECT_EQ(hungry.take(has_room), "small");
}

// It would be taken, find that it may not pass, wait again, and so on for ever.
TEST(Hungry, WhoMayNotPassOneOfItsOwnerHoldsUpNobody) {
  Hungry hungry([](const std::string&, int64_t bytes) { return bytes <= 50; }, kNobody);
  hungry.add("a", 100, 1, "large");
  hungry.add("a", 10, 2, "small");
  for (int64_t i = 0; i < Hungry::kMostPasses; ++i) hungry.passed("b", 1000 + i);
  EXPECT_FALSE(hungry.may_pass("b", 1, 2000));
  for (int64_t i = 0; i < Hungry::kMostPasses; ++i) hungry.passed("a", 3000 + i);
  EXPECT_FALSE(hungry.may_pass("a", 1, 2));
  EXPECT_TRUE(hungry.may_pass("b", 1, 2000));
  EXPECT_EQ(hungry.take([](const std::string&, int64_t bytes) { return bytes <= 50; }), "");
}

TEST(Hungry, OfThousandsThatFindNoRoomOneOfEachOwnerIsAsked) {
  Hungry hungry(kAll, kNobody);
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
