#include "twinkle/server/service/promises.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "twinkle/base/error.h"
#include "twinkle/base/error_for_test.h"
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

TEST_F(PromisesTest, OneThatIsNotKnownIsToldHowLongResultsAreKept) {
  Promises promises({.keep_read = 90s}, loop_);
  promises.poll("r1", note());
  EXPECT_NE(told_.back().find("'r1' is not known; results that were fetched are kept for 90 s"),
            std::string::npos)
      << told_.back();
}

TEST_F(PromisesTest, AnOwnerHasAtMostSoManyThatAreNotSettled) {
  Promises promises({.max_open = 2}, loop_);
  promises.open("r1", "a");
  promises.require_room("a");
  promises.open("r2", "a");
  EXPECT_THROW(promises.require_room("a"), Error);
  promises.require_room("b");
  promises.settle("r1", {});
  promises.require_room("a");
  promises.open("r4", "a");
  promises.drop("r2");
  promises.require_room("a");
  promises.open("r5", "a");
  EXPECT_THROW(promises.require_room("a"), Error);
}

TEST_F(PromisesTest, AnOwnersRequestsThatAreNotSettledHaveAtMostSoManyBytes) {
  Promises promises({.max_open_bytes = 100}, loop_,
                    {.max_disk = [](const std::string& owner) { return owner == "b" ? 50 : 0; }});
  promises.require_room("a", 101);
  promises.open("r1", "a", "", 60);
  promises.require_room("a", 40);
  const std::string why = error_of([&] { promises.require_room("a", 41); });
  EXPECT_EQ(why,
            "server: accepted requests of this tenant that have not ended have 60 bytes, this one "
            "has 41, their limit is 100; wait for some of their results, and send the numbers that "
            "they wait for");
  promises.open("r2", "b", "", 10);
  EXPECT_THROW(promises.require_room("b", 41), Error) << "its quota";
  promises.settle("r1", {});
  promises.require_room("a", 41);
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

TEST_F(PromisesTest, BeyondTheirBytesTheOldestLeaveMemoryAndAreReadBack) {
  std::vector<uint64_t> read;
  Promises promises({.max_result_bytes = 10}, loop_,
                    {.read = [&](uint64_t ended, const Reader::Then& then) {
                      read.push_back(ended);
                      then(Ended{.body = "record " + std::to_string(ended)}, nullptr);
                    }});
  const auto poll = [&](const std::string& id) {
    promises.poll(id, note());
    return told_.back();
  };
  for (const char* id : {"r1", "r2", "r3", "r4", "r5"}) promises.open(id, "a");
  promises.poll("r1", note());
  for (uint64_t n = 1; n <= 4; ++n) promises.settle("r" + std::to_string(n), {.body = "12345"}, n);
  EXPECT_EQ(told_, std::vector<std::string>{"200 12345"}) << "who waits has it at once";
  EXPECT_EQ(promises.num_bytes(), 10);
  EXPECT_EQ(poll("r1"), "200 record 1");
  EXPECT_EQ(poll("r2"), "200 record 2");
  EXPECT_EQ(poll("r4"), "200 12345");
  EXPECT_EQ(read, (std::vector<uint64_t>{1, 2}));
  promises.settle("r5", {.body = "in no record at all"});
  EXPECT_EQ(poll("r5"), "200 in no record at all");
  EXPECT_EQ(poll("r4"), "200 record 4");
  EXPECT_EQ(promises.num_bytes(), 19);
  loop_.pass(10min);
  EXPECT_EQ(poll("r2").substr(0, 3), "404") << "it was read";
  EXPECT_EQ(poll("r3"), "200 record 3");
  EXPECT_EQ(promises.num_bytes(), 0);
}

TEST_F(PromisesTest, AHundredPollsOfAResultOnTheDiskAreOneReadAndHaveTheSameBytes) {
  std::vector<Reader::Then> reads;
  Promises promises({.max_result_bytes = 0}, loop_,
                    {.read = [&](uint64_t, const Reader::Then& then) { reads.push_back(then); }});
  promises.open("r1", "a");
  promises.settle("r1", {.body = "12345"}, 1);
  std::vector<std::shared_ptr<const std::string>> told;
  const auto poll = [&] {
    promises.poll("r1", [&](const Response& r) {
      EXPECT_EQ(r.status, 200);
      told.push_back(r.shared);
    });
  };
  for (int i = 0; i < 100; ++i) poll();
  ASSERT_EQ(reads.size(), 1U);
  promises.drop("r1");  // who asked before has it
  reads[0](Ended{.body = "12345"}, nullptr);
  ASSERT_EQ(told.size(), 100U);
  EXPECT_EQ(*told[0], "12345");
  EXPECT_TRUE(std::ranges::all_of(told, [&](const auto& one) { return one == told[0]; }));
}

TEST_F(PromisesTest, AllPollsOfAResultThatTheDiskRefusesAreToldSoAndTheNextReadsAgain) {
  std::vector<Reader::Then> reads;
  Promises promises({.max_result_bytes = 0}, loop_,
                    {.read = [&](uint64_t, const Reader::Then& then) { reads.push_back(then); }});
  promises.open("r1", "a");
  promises.settle("r1", {.body = "12345"}, 1);
  for (int i = 0; i < 2; ++i) promises.poll("r1", note());
  reads.at(0)({}, std::make_exception_ptr(Error(Code::kInternal, "no disk")));
  ASSERT_EQ(told_.size(), 2U);
  for (const std::string& one : told_) EXPECT_EQ(one.substr(0, 3), "503");
  promises.poll("r1", note());
  reads.at(1)(Ended{.body = "12345"}, nullptr);
  EXPECT_EQ(told_.back(), "200 12345");
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
