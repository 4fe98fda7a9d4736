#include "twinkle/server/service/promises.h"

#include <gtest/gtest.h>

#include "twinkle/base/error.h"
#include "twinkle/server/service/loop_for_test.h"

namespace twinkle::server {
namespace {

using namespace std::chrono_literals;

class PromisesTest : public testing::Test {
 protected:
  // What polls were answered, in order: "200 body".
  Reply note() {
    return
        [this](const Response& r) { told_.push_back(std::to_string(r.status) + " " + r.text()); };
  }

  LoopForTest loop_;
  Promises promises_{{}, loop_};
  std::vector<std::string> told_;
};

TEST_F(PromisesTest, APollWaitsForItsResultAndALaterOneHasItAtOnce) {
  promises_.open("r1", "a");
  promises_.poll("r1", note());
  promises_.poll("r1", note());
  EXPECT_EQ(promises_.num_held(), 2);
  EXPECT_TRUE(told_.empty());
  promises_.settle("r1", {.body = "x"});
  EXPECT_EQ(told_, (std::vector<std::string>{"200 x", "200 x"}));
  EXPECT_EQ(promises_.num_held(), 0);
  promises_.poll("r1", note());
  EXPECT_EQ(told_.back(), "200 x");
}

TEST_F(PromisesTest, AnOwnerHasAtMostSoManyThatAreNotSettled) {
  Promises promises({.max_open = 2}, loop_);
  promises.open("r1", "a");
  promises.open("r2", "a");
  EXPECT_THROW(promises.open("r3", "a"), Error);
  promises.open("r3", "b");
  promises.settle("r1", {});
  promises.open("r4", "a");
  promises.drop("r2");
  promises.open("r5", "a");
  EXPECT_THROW(promises.open("r6", "a"), Error);
}

TEST_F(PromisesTest, APollIsHeldThirtySecondsThenToldToComeAgain) {
  promises_.open("r1", "a");
  promises_.poll("r1", note());
  loop_.pass(29s);
  EXPECT_TRUE(told_.empty());
  loop_.pass(1s);
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].substr(0, 3), "408");
  promises_.settle("r1", {.body = "x"});
  EXPECT_EQ(told_.size(), 1u);
  EXPECT_EQ(promises_.num_held(), 0);
}

TEST_F(PromisesTest, AnUnreadResultStaysAndAReadOneGoesAfterTenMinutes) {
  promises_.open("r1", "a");
  promises_.settle("r1", {.body = "x"});
  loop_.pass(1h);
  promises_.poll("r1", note());
  loop_.pass(9min);
  promises_.poll("r1", note());  // its response was lost
  EXPECT_EQ(told_.back(), "200 x");
  EXPECT_EQ(promises_.num_bytes(), 1);
  loop_.pass(1min);
  promises_.poll("r1", note());
  EXPECT_EQ(told_.back().substr(0, 3), "404");
  EXPECT_EQ(promises_.num_bytes(), 0);
}

TEST_F(PromisesTest, OneIsFoundWithItsOwnerAndAnUnknownOneIs404) {
  promises_.open("r1", "a");
  promises_.open("r2", "b");
  ASSERT_TRUE(promises_.find("r1") && promises_.find("r2"));
  EXPECT_EQ(promises_.find("r1")->owner, "a");
  EXPECT_EQ(promises_.find("r2")->owner, "b");
  EXPECT_EQ(promises_.find("r1")->number, 1);
  EXPECT_EQ(promises_.find("r2")->number, promises_.num_ever());
  EXPECT_EQ(promises_.find("r3"), nullptr);
  promises_.poll("r3", note());
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].substr(0, 3), "404");
  EXPECT_EQ(promises_.num_held(), 0);
}

TEST_F(PromisesTest, TheFirstOutcomeStands) {
  promises_.open("r1", "a");
  promises_.settle("r1", {.body = "x"});
  promises_.settle("r1", {.body = "y"});
  promises_.settle("gone", {.body = "y"});
  promises_.poll("r1", note());
  EXPECT_EQ(told_.back(), "200 x");
  EXPECT_EQ(promises_.num_open(), 0);
  EXPECT_THROW(promises_.open("r1", "a"), Error);
}

TEST_F(PromisesTest, ADroppedOneEndsThePollsThatWait) {
  promises_.open("r1", "a");
  promises_.poll("r1", note());
  promises_.drop("r1");
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].substr(0, 3), "410");
  EXPECT_EQ(promises_.num_open(), 0);
  loop_.pass(1h);
  EXPECT_EQ(told_.size(), 1u);
}

TEST_F(PromisesTest, APollWhoseClientIsGoneIsForgotten) {
  promises_.open("r1", "a");
  const int64_t gone = promises_.poll("r1", note());
  promises_.poll("r1", note());
  promises_.forget("r1", gone);
  EXPECT_EQ(promises_.num_held(), 1);
  promises_.settle("r1", {.body = "x"});
  EXPECT_EQ(told_.size(), 1);
  EXPECT_EQ(promises_.poll("r1", note()), 0);
  promises_.forget("r1", gone);
  promises_.forget("none", 1);
  EXPECT_EQ(promises_.num_held(), 0);
}

}  // namespace
}  // namespace twinkle::server
