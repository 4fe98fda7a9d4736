#include "twinkle/server/connections/connections.h"

#include <gtest/gtest.h>

namespace twinkle::server {
namespace {

TEST(Connections, TheLongestIdleOneOfThePeerThatHasMostGivesWay) {
  Connections all;
  const int64_t few = all.add("10.0.0.1");
  all.idles(few);
  const int64_t first = all.add("10.0.0.2"), second = all.add("10.0.0.2");
  const int64_t busy = all.add("10.0.0.2");
  for (const int64_t one : {second, first}) all.idles(one);
  EXPECT_EQ(all.give_way(), second) << "the peer has three";
  EXPECT_EQ(all.num_that_count(), 3);
  EXPECT_EQ(all.give_way(), first) << "the peer has two";
  EXPECT_EQ(all.give_way(), few) << "it is busy, the one that is left";
  EXPECT_EQ(all.give_way(), std::nullopt);
  for (const int64_t one : {few, first, second}) all.remove(one);
  EXPECT_EQ(all.num_that_count(), 1);
  all.idles(busy);
  EXPECT_EQ(all.give_way(), busy);
}

TEST(Connections, OneCountsForTheTenantThatSpokeLastAndElseForItsPeer) {
  Connections all;
  int64_t of_proxy[4];
  for (int64_t& one : of_proxy) one = all.add("10.0.0.1");
  const int64_t other = all.add("10.0.0.2"), more = all.add("10.0.0.2");
  for (const int64_t one : {other, more}) all.idles(one);
  for (int64_t i = 0; i < 4; ++i) {
    all.belongs_to(of_proxy[i], "tenant" + std::to_string(i));
    all.idles(of_proxy[i]);
  }
  EXPECT_EQ(all.give_way(), other) << "each tenant of the proxy has one";
  all.works(of_proxy[0]);
  all.belongs_to(of_proxy[0], "");
  all.idles(of_proxy[0]);
  EXPECT_EQ(all.give_way(), more) << "all have one, and it idles longest";
}

TEST(Connections, OneThatGivesWayTakesNoPartUntilItIsRemoved) {
  Connections all;
  const int64_t one = all.add("10.0.0.1");
  all.idles(one);
  EXPECT_EQ(all.give_way(), one);
  all.works(one);
  all.belongs_to(one, "a");
  all.idles(one);
  EXPECT_EQ(all.give_way(), std::nullopt);
  all.remove(one);
  EXPECT_EQ(all.num_that_count(), 0);
}

TEST(Connections, OneForProbesNeitherCountsNorGivesWay) {
  Connections all;
  const int64_t one = all.add("10.0.0.1", true);
  all.idles(one);
  EXPECT_EQ(all.num_that_count(), 0);
  EXPECT_EQ(all.give_way(), std::nullopt);
  all.remove(one);
  EXPECT_EQ(all.num_that_count(), 0);
}

}  // namespace
}  // namespace twinkle::server
