// Numbers that do not come, for which others wait.
#include "twinkle/serving/api/service_for_test.h"

namespace twinkle::server {
namespace {

// The SDK goes on with the next number after five minutes of 503.
class MissingTest : public ServiceTest {
 protected:
  MissingTest() {
    options_.futures.max_open = 4;
    restart();
  }
  // As many requests as may be wait for a number, until the session ends.
  std::string full() {
    const std::string s = session();
    const std::string id = text(result(post("/api/v1/create_model", model(s))), "model_id");
    for (int64_t seq_id = 2; seq_id <= 5; ++seq_id) EXPECT_EQ(step(id, seq_id).status, 200);
    return s;
  }
  static constexpr std::chrono::minutes kGivenUpAfter{6};
  void finish(const std::string& s) {
    EXPECT_EQ(post("/api/v1/sessions/" + s + "/finish", JsonObject{}).status, 200);
  }
  int64_t missing(const std::string& id) { return core::first_missing(*core_->domain().run(id)); }
};

TEST_F(MissingTest, ANumberThatDoesNotComeAgainAfter503IsUsedUpThroughAStartToo) {
  const std::string id = run(), s = full();
  EXPECT_EQ(train(id, 1).status, 503);
  finish(s);
  const Response second = train(id, 2), third = step(id, 3);
  loop_->pass(kGivenUpAfter - std::chrono::seconds(1));
  EXPECT_EQ(missing(id), 1) << "its client may come again";
  loop_->pass(std::chrono::seconds(2));
  EXPECT_EQ(result(second).status, 200);
  const std::string error = text(failure(third), "error");
  EXPECT_NE(error.find("seq_id 1: server: it did not come for 6 minutes"), std::string::npos)
      << error;
  restart();
  EXPECT_EQ(text(failure(third), "error"), error);
  EXPECT_EQ(text(failure(train(id, 1)), "error"), "server: it did not come for 6 minutes");
  result(train(id, 4));
  EXPECT_TRUE(parse(result(step(id, 5))).contains("metrics"));
}

TEST_F(MissingTest, ANumberThatIsMissingAfterAStartIsUsedUpUnlessItComes) {
  const std::string id = run(), other = run(), last = run(), s = full();
  EXPECT_EQ(train(id, 1).status, 503);
  EXPECT_EQ(train(other, 1).status, 503);
  EXPECT_EQ(train(last, 1).status, 503);
  finish(s);
  const Response second = train(id, 2), third = step(id, 3), behind = step(other, 2);
  restart();
  loop_->pass(kGivenUpAfter - std::chrono::seconds(1));
  EXPECT_EQ(missing(id), 1) << "its client may be there";
  EXPECT_EQ(result(train(other, 1)).status, 200);
  EXPECT_TRUE(parse(result(behind)).contains("metrics"));
  loop_->pass(std::chrono::seconds(2));
  EXPECT_EQ(result(second).status, 200);
  const std::string error = text(failure(third), "error");
  EXPECT_NE(error.find("seq_id 1: server: it did not come for 6 minutes"), std::string::npos)
      << error;
  result(train(id, 4));
  EXPECT_TRUE(parse(result(step(id, 5))).contains("metrics"));
  EXPECT_EQ(missing(last), 1) << "nothing waits for it";
}

TEST_F(MissingTest, ANumberThatComesAgainOrHasNothingBehindItIsNotUsedUp) {
  const std::string id = run(), last = run(), s = full();
  EXPECT_EQ(train(id, 1).status, 503);
  EXPECT_EQ(step(last, 1).status, 503);
  finish(s);
  const Response first = train(id, 1), second = step(id, 2);
  EXPECT_EQ(result(first).status, 200);
  EXPECT_TRUE(parse(result(second)).contains("metrics"));
  loop_->pass(2 * kGivenUpAfter);
  EXPECT_EQ(missing(last), 1);
  const Response behind = train(last, 2);
  loop_->pass(kGivenUpAfter + std::chrono::seconds(1));
  EXPECT_EQ(result(behind).status, 200);
}

TEST_F(MissingTest, ANumberForWhichOthersWaitIsTakenThoughTheyAreAsManyAsMayBe) {
  const std::string id = run();
  std::vector<Response> acks;
  for (const int64_t seq_id : {3, 4, 6, 7}) acks.push_back(step(id, seq_id));
  EXPECT_EQ(step(id, 8).status, 503);
  EXPECT_EQ(train(id, 2).status, 503) << "nothing waits for it alone";
  for (const int64_t seq_id : {1, 2, 5}) acks.push_back(train(id, seq_id));
  for (const Response& ack : acks) EXPECT_EQ(result(ack).status, 200);
}

TEST_F(MissingTest, ANumberBehindWhichRefusedOnesAloneWaitHasNoMoreRoomThanOthers) {
  const std::string id = run(), s = full();
  failure(post("/api/v1/optim_step", {{"model_id", id}, {"seq_id", 2}}));
  EXPECT_EQ(train(id, 1).status, 503) << "nobody waits for it";
  finish(s);
  const Response first = train(id, 1), third = step(id, 3);
  EXPECT_EQ(result(first).status, 200);
  EXPECT_TRUE(parse(result(third)).contains("metrics"));
}

}  // namespace
}  // namespace twinkle::server
