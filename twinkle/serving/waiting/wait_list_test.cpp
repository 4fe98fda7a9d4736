#include "twinkle/serving/waiting/wait_list.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "twinkle/server/service/loop_for_test.h"

namespace twinkle::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Head = WaitList::Head;
using Names = std::vector<std::string>;

class WaitListTest : public testing::Test {
 protected:
  static Head head(const std::string& owner, const std::string& key, int64_t cost) {
    return {.key = key, .owner = owner, .cost = cost};
  }
  void add(const std::string& owner, const std::string& key, int64_t cost) {
    list_.add(head(owner, key, cost));
  }
  void add_sample(const std::string& owner, const std::string& key, int64_t cost) {
    list_.add({.key = key, .owner = owner, .is_sample = true, .cost = cost});
  }
  void add_rated(const std::string& owner, const std::string& key, int64_t tokens) {
    list_.add({.key = key, .owner = owner, .tokens = tokens});
  }
  void end(const std::string& owner, int64_t cost) { list_.give_back(head(owner, "", cost)); }
  // All that can go now.
  Names taken() {
    Names out;
    while (const auto key = list_.take()) out.push_back(*key);
    return out;
  }

  LoopForTest loop_;
  std::map<std::string, store::Quota> quotas_;
  int num_agains_ = 0;
  WaitList list_{100, loop_, [this](const std::string& owner) { return quotas_[owner]; },
                 [this] { ++num_agains_; }};
};

TEST_F(WaitListTest, ATenantHasAtMostAsMuchAsItLeavesAndWhoComesThenFindsRoom) {
  for (int i = 0; i < 10; ++i) add("a", "a" + std::to_string(i), 10);
  EXPECT_EQ(taken().size(), 5U) << "half";
  for (int i = 0; i < 10; ++i) add("b", "b" + std::to_string(i), 10);
  EXPECT_EQ(taken().size(), 3U) << "as much as it leaves then";
  EXPECT_TRUE(list_.would_go(head("c", "", 10)));
  EXPECT_FALSE(list_.would_go(head("b", "", 1)));
  EXPECT_EQ(list_.held("a"), 50);
  EXPECT_EQ(list_.left(), 20);
}

TEST_F(WaitListTest, WhatIsLargerThanTheRoomGoesWhenNothingElseIsThere) {
  add("a", "first", 10);
  EXPECT_EQ(taken(), Names{"first"});
  add("b", "large", 500);
  EXPECT_EQ(taken(), Names{});
  add("c", "behind", 20);
  EXPECT_EQ(taken(), Names{"behind"}) << "it pays for less";
  end("a", 10), end("c", 20);
  EXPECT_EQ(taken(), Names{"large"});
  add("c", "last", 1);
  EXPECT_EQ(taken(), Names{});
  end("b", 500);
  EXPECT_EQ(taken(), Names{"last"});
}

// Nobody waits longer than all that was in the room before: so what others that hold less are given
// while one waits is no more than that, and is made up for later.
TEST_F(WaitListTest, SharesOfTenantsThatAlwaysWaitDifferByTheirLongestAndTheRoom) {
  std::mt19937 draw(7);
  const std::map<std::string, int64_t> longest{{"a", 1}, {"b", 3}, {"c", 7}, {"d", 10}};
  std::map<std::string, int64_t> got, costs;
  std::deque<std::pair<std::string, int64_t>> in_engine{{"first", 100}};
  const auto next = [&](const std::string& owner) {
    costs[owner] = 1 + static_cast<int64_t>(draw() % static_cast<uint64_t>(longest.at(owner)));
    add(owner, owner, costs[owner]);
  };
  add("first", "first", 100);
  ASSERT_EQ(taken(), Names{"first"});
  for (const auto& [owner, most] : longest) next(owner);
  for (int i = 0; i < 20000; ++i) {
    end(in_engine.front().first, in_engine.front().second);
    in_engine.pop_front();
    while (const auto key = list_.take()) {
      got[*key] += costs[*key];
      in_engine.emplace_back(*key, costs[*key]);
      next(*key);
    }
    ASSERT_FALSE(in_engine.empty()) << i;
    for (const auto& [owner, amount] : got)
      for (const auto& [other, its] : got)
        ASSERT_LE(amount - its, longest.at(owner) + longest.at(other) + 100) << owner << other << i;
  }
  EXPECT_GT(got["a"], 5000);
}

TEST_F(WaitListTest, ALargeOneIsPassedByNoMoreThanItsCostAndThenItsRoomIsKept) {
  int64_t passed = 0, running = 0;
  const auto small = [&] { add("a", "small", 1); };
  for (small(); list_.take(); small()) ++running;
  ASSERT_EQ(running, 50);
  add("b", "large", 80);
  while (running > 0) {
    end("a", 1), --running;
    while (const auto key = list_.take()) {
      if (*key == "large") {
        EXPECT_EQ(passed, 79) << "the last of these would wait as long, and is younger";
        EXPECT_EQ(running, 20);
        return;
      }
      ++passed, ++running, small();
    }
  }
  FAIL() << "it never goes";
}

TEST_F(WaitListTest, WhileTheNextFindsNoRoomWhoHoldsLessThanItsTenantGoesOn) {
  add("a", "a", 30), add("b", "b", 10);
  ASSERT_EQ(taken().size(), 2U);
  add("b", "large", 60);  // next to 40 it has no room, next to its own 10 it had
  for (int i = 0; i < 60; ++i) {
    add("c", "c", 1);
    ASSERT_EQ(taken(), Names{"c"});
    end("c", 1);
  }
  add("c", "c", 10);
  EXPECT_EQ(taken(), Names{"c"});
  add("c", "more", 1);
  EXPECT_EQ(taken(), Names{});
  for (const char* owner : {"a", "b", "c"}) EXPECT_FALSE(list_.would_go(head(owner, "", 1)));
  EXPECT_FALSE(list_.would_go(head("d", "", 11)));
  EXPECT_TRUE(list_.would_go(head("d", "", 10)));
  end("a", 30);
  EXPECT_EQ(taken(), (Names{"large", "more"}));
}

TEST_F(WaitListTest, WhoWaitsForItsOwnTenantsRoomHoldsUpNobodyElse) {
  add("a", "a", 40), add("a", "large", 40), add("a", "behind", 1);
  EXPECT_EQ(taken(), Names{"a"});
  for (int i = 0; i < 1000; ++i) {
    add("b", "b", 20);
    ASSERT_EQ(taken(), Names{"b"});
    end("b", 20);
  }
  end("a", 40);
  EXPECT_EQ(taken(), (Names{"large", "behind"}));
}

TEST_F(WaitListTest, SamplesOvertakeTrainingOfTheirTenantByItsCostAndNoMore) {
  add("a", "a", 40), add("a", "training", 30);
  EXPECT_EQ(taken(), Names{"a"});
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(list_.would_go({.owner = "a", .is_sample = true, .cost = 10}));
    add_sample("a", "sample", 10);
    ASSERT_EQ(taken(), Names{"sample"});
    end("a", 10);
  }
  EXPECT_FALSE(list_.would_go({.owner = "a", .is_sample = true, .cost = 10}));
  add_sample("a", "sample", 10);
  EXPECT_EQ(taken(), Names{});
  end("a", 40);
  EXPECT_EQ(taken(), (Names{"training", "sample"}));
}

TEST_F(WaitListTest, OneThatIsRemovedHoldsUpNobody) {
  add("a", "a", 50);
  EXPECT_EQ(taken(), Names{"a"});
  add("b", "large", 90);
  for (int i = 0; i < 89; ++i) {
    add("c", "c", 1);
    ASSERT_EQ(taken(), Names{"c"});
    end("c", 1);
  }
  add("c", "c", 1);
  EXPECT_EQ(taken(), Names{});
  EXPECT_FALSE(list_.would_go(head("d", "", 1)));
  list_.remove(head("b", "large", 90));
  EXPECT_EQ(taken(), Names{"c"});
}

TEST_F(WaitListTest, AMinutesWorthGoesAtOnceAndTheRestInItsOrderAtItsRateAndDelaysNobody) {
  quotas_["a"].tokens_per_minute = 600;
  add_rated("a", "1", 500), add_rated("a", "2", 200);  // owes 100 then, which takes 10 s
  add_rated("a", "3", 300), add_rated("a", "4", 0), add_rated("b", "other", 1'000'000'000);
  EXPECT_EQ(taken(), (Names{"1", "other", "2"}));
  EXPECT_EQ(list_.reason("a", 2, 3, 100),
            "this tenant's limit of 600 tokens a minute: position 2 of 3, about 30 s")
      << "it owes 100, and each of two queues has 100 before it";
  EXPECT_EQ(list_.reason("b", 1, 1, 0), "");
  loop_.pass(milliseconds(9900));
  EXPECT_EQ(taken(), Names{});
  EXPECT_EQ(list_.reason("a", 1, 2, 0),
            "this tenant's limit of 600 tokens a minute: position 1 of 2, about 1 s");
  num_agains_ = 0;
  loop_.pass(milliseconds(200));
  EXPECT_EQ(num_agains_, 1);
  EXPECT_EQ(taken(), Names{"3"});
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(taken(), Names{});
    loop_.pass(seconds(1));
  }
  loop_.pass(milliseconds(100));
  EXPECT_EQ(taken(), Names{"4"});
  loop_.pass(seconds(3600));
  add_rated("a", "5", 601), add_rated("a", "6", 1);
  EXPECT_EQ(taken(), Names{"5"}) << "a minute's worth is kept, not an hour's";
}

TEST_F(WaitListTest, WhatRatesDoNotHoldGoesBeforeWhatTheyDo) {
  quotas_["a"].tokens_per_minute = 60;
  add_rated("a", "1", 1000);
  EXPECT_EQ(taken(), Names{"1"});
  add_rated("a", "2", 1);
  list_.add({.key = "new run", .owner = "a", .is_rated = false});
  EXPECT_EQ(taken(), Names{"new run"});
}

TEST_F(WaitListTest, WhatWasGeneratedAndComputedIsPaidAfterwards) {
  quotas_["a"].compute_seconds_per_minute = 30;
  add_rated("a", "1", 1);
  EXPECT_EQ(taken(), Names{"1"});
  list_.spend("a", 1'000'000, 45);
  EXPECT_FALSE(list_.may_go("a"));
  EXPECT_EQ(list_.reason("a", 1, 1, 0),
            "this tenant's limit of 30 seconds of computing a minute: position 1 of 1, about 30 s");
  loop_.pass(seconds(31));
  EXPECT_TRUE(list_.may_go("a"));
  quotas_["b"].compute_seconds_per_minute = 0.25;
  list_.spend("b", 0, 0.25);
  EXPECT_FALSE(list_.may_go("b")) << "it is just empty";
  EXPECT_EQ(list_.reason("b", 1, 1, 0),
            "this tenant's limit of 0.25 seconds of computing a minute: position 1 of 1, about 1 "
            "s");
  quotas_["c"].compute_seconds_per_minute = 1e-300;  // from a file that is older than its limit
  list_.spend("c", 0, 45);
  EXPECT_FALSE(list_.may_go("c"));
  EXPECT_NE(list_.reason("c", 1, 1, 0).find("about 1000000000 s"), std::string::npos);
}

TEST_F(WaitListTest, ALimitThatIsLiftedIsSeenWithinASecond) {
  quotas_["a"].tokens_per_minute = 60;
  add_rated("a", "1", 6000), add_rated("a", "2", 1);
  EXPECT_EQ(taken(), Names{"1"});
  quotas_["a"].tokens_per_minute = 0;
  num_agains_ = 0;
  loop_.pass(seconds(1));
  EXPECT_EQ(num_agains_, 1);
  EXPECT_EQ(taken(), Names{"2"});
}

}  // namespace
}  // namespace twinkle::server
