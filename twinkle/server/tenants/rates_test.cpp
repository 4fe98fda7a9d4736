#include "twinkle/server/tenants/rates.h"

#include <gtest/gtest.h>

#include <vector>

#include "twinkle/server/service/loop_for_test.h"

namespace twinkle::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class RatesTest : public testing::Test {
 protected:
  // Asks, and notes in gone_ when it goes.
  void ask(const std::string& owner, const std::string& id, int64_t tokens) {
    if (rates_.enter(owner, id, tokens, [this, id] { gone_.push_back(id); })) gone_.push_back(id);
  }
  std::vector<std::string> gone() { return std::exchange(gone_, {}); }
  using Names = std::vector<std::string>;

  LoopForTest loop_;
  std::map<std::string, store::Quota> quotas_;
  Rates rates_{loop_, [this](const std::string& owner) { return quotas_[owner]; }};
  std::vector<std::string> gone_;
};

TEST_F(RatesTest, WithoutALimitAllGoesAtOnce) {
  for (const char* id : {"a", "b"}) ask("alice", id, 1'000'000'000);
  EXPECT_EQ(gone(), (Names{"a", "b"}));
}

TEST_F(RatesTest, AMinutesWorthGoesAtOnceAndTheRestInItsOrderAtItsRate) {
  quotas_["alice"].tokens_per_minute = 600;
  ask("alice", "a", 500);
  ask("alice", "b", 200);  // owes 100 then, which takes 10 s
  ask("alice", "c", 300);
  ask("alice", "d", 0);
  EXPECT_EQ(gone(), (Names{"a", "b"}));
  EXPECT_EQ(rates_.reason("c"),
            "this tenant's limit of 600 tokens a minute: position 1 of 2, about 10 s");
  EXPECT_EQ(rates_.reason("d"),
            "this tenant's limit of 600 tokens a minute: position 2 of 2, about 40 s");
  EXPECT_EQ(rates_.reason("a"), "");
  loop_.pass(milliseconds(9900));
  EXPECT_EQ(gone(), Names{});
  EXPECT_EQ(rates_.reason("c"),
            "this tenant's limit of 600 tokens a minute: position 1 of 2, about 1 s");
  loop_.pass(milliseconds(200));
  EXPECT_EQ(gone(), Names{"c"});
  EXPECT_EQ(rates_.num_held(), 1);
  loop_.pass(milliseconds(30100));
  EXPECT_EQ(gone(), Names{"d"});
  EXPECT_EQ(rates_.num_held(), 0);
}

TEST_F(RatesTest, WhoLeavesTakesNothingAndIsNotCalled) {
  quotas_["alice"].tokens_per_minute = 600;
  ask("alice", "a", 700);  // owes 100 then, which takes 10 s
  ask("alice", "b", 6000);
  ask("alice", "c", 1);
  rates_.leave("b");
  rates_.leave("a");  // is not held
  EXPECT_EQ(rates_.reason("b"), "");
  EXPECT_EQ(rates_.reason("c"),
            "this tenant's limit of 600 tokens a minute: position 1 of 1, about 10 s");
  loop_.pass(milliseconds(10100));
  EXPECT_EQ(gone(), (Names{"a", "c"}));
  EXPECT_EQ(rates_.num_held(), 0);
}

TEST_F(RatesTest, ThePlaceOfOneBehindOthersThatHaveLeftIsNoMoreThanThereAre) {
  quotas_["alice"].tokens_per_minute = 1'234'560;
  ask("alice", "a", 1'234'570);                                     // owes 10 then
  for (const char* id : {"b", "c", "d"}) ask("alice", id, 20'576);  // of a second
  rates_.leave("c");
  EXPECT_EQ(rates_.reason("d"),
            "this tenant's limit of 1234560 tokens a minute: position 2 of 2, about 2 s");
  loop_.pass(milliseconds(10));
  EXPECT_EQ(gone(), (Names{"a", "b"}));
  EXPECT_EQ(rates_.reason("d"),
            "this tenant's limit of 1234560 tokens a minute: position 1 of 1, about 1 s");
  loop_.pass(milliseconds(1100));
  EXPECT_EQ(gone(), Names{"d"});
}

TEST_F(RatesTest, OneTenantsHoldDelaysNoOther) {
  quotas_["alice"].tokens_per_minute = quotas_["bob"].tokens_per_minute = 60;
  ask("alice", "a", 1000);
  ask("alice", "b", 1);
  ask("bob", "c", 1);
  ask("carol", "d", 1000);
  EXPECT_EQ(gone(), (Names{"a", "c", "d"}));
}

TEST_F(RatesTest, ABucketHoldsAMinutesWorthAtMost) {
  quotas_["alice"].tokens_per_minute = 60;
  ask("alice", "a", 1);
  loop_.pass(seconds(3600));
  ask("alice", "b", 70);
  ask("alice", "c", 1);
  EXPECT_EQ(gone(), (Names{"a", "b"}));
  loop_.pass(seconds(11));
  EXPECT_EQ(gone(), Names{"c"});
}

TEST_F(RatesTest, WhatWasGeneratedAndComputedIsPaidAfterwards) {
  quotas_["alice"].compute_seconds_per_minute = 30;
  ask("alice", "a", 1);
  rates_.spend("alice", 1'000'000, 45);
  ask("alice", "b", 1);
  EXPECT_EQ(gone(), Names{"a"});
  EXPECT_EQ(rates_.reason("b"),
            "this tenant's limit of 30 seconds of computing a minute: position 1 of 1, about 30 s");
  loop_.pass(seconds(31));
  EXPECT_EQ(gone(), Names{"b"});
  quotas_["bob"].tokens_per_minute = 60;
  ask("bob", "c", 1);
  rates_.spend("bob", 100, 1000);
  ask("bob", "d", 1);
  EXPECT_EQ(rates_.reason("d"),
            "this tenant's limit of 60 tokens a minute: position 1 of 1, about 41 s");
}

TEST_F(RatesTest, ABucketThatIsJustEmptyIsToldByItsOwnLimit) {
  quotas_["alice"].compute_seconds_per_minute = 0.25;
  ask("alice", "a", 1);
  rates_.spend("alice", 0, 0.25);
  ask("alice", "b", 1);
  EXPECT_EQ(rates_.reason("b"),
            "this tenant's limit of 0.25 seconds of computing a minute: position 1 of 1, about 1 "
            "s");
}

// Of a file that was written before such a limit was refused.
TEST_F(RatesTest, AWaitThatNobodyLivesToSeeIsToldAsLong) {
  quotas_["alice"].compute_seconds_per_minute = 1e-300;
  ask("alice", "a", 1);
  rates_.spend("alice", 0, 45);
  ask("alice", "b", 1);
  EXPECT_EQ(rates_.reason("b"),
            "this tenant's limit of 1e-300 seconds of computing a minute: position 1 of 1, about "
            "1000000000 s");
}

TEST_F(RatesTest, ALimitThatIsLiftedOrChangedIsSeenWithinASecond) {
  quotas_["alice"].tokens_per_minute = 60;
  ask("alice", "a", 6000);
  ask("alice", "b", 1);
  ask("alice", "c", 1);
  EXPECT_EQ(gone(), Names{"a"});
  quotas_["alice"].tokens_per_minute = 0;
  loop_.pass(milliseconds(1100));
  EXPECT_EQ(gone(), (Names{"b", "c"}));
}

}  // namespace
}  // namespace twinkle::server
