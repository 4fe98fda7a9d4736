#include "twinkle/server/tenants/kept.h"

#include "twinkle/server/service_for_test.h"

namespace twinkle::server {
namespace {

class KeptTest : public ServiceTest {
 protected:
  KeptTest() {
    options_.kept = {.max_sessions = 2, .max_samplers = 2};
    restart();
  }
  void restart() {
    open();
    go_on();
  }
  Response begin(const std::string& key = "tml-a") {
    return post("/api/v1/create_session", JsonObject{}, key);
  }
  Response sampler(const std::string& session, int64_t number) {
    return post(
        "/api/v1/create_sampling_session",
        {{"session_id", session}, {"sampling_session_seq_id", number}, {"base_model", "null"}});
  }
  Response publish(const std::string& run, int64_t seq_id) {
    return post("/api/v1/save_weights_for_sampler", {{"model_id", run}, {"seq_id", seq_id}});
  }
};

TEST_F(KeptTest, ATenantHasAtMostSoManySessionsAfterAStartToo) {
  session(), session();
  const std::string refusal =
      "server: this tenant has 2 sessions, max_sessions is 2; use those that are there, or ask the "
      "operator for a higher limit";
  EXPECT_EQ(text(begin(), "detail"), refusal);
  EXPECT_EQ(begin("tml-b").status, 200) << "another has its own";
  restart();
  EXPECT_EQ(text(begin(), "detail"), refusal);
  options_.kept.max_sessions = 3;
  restart();
  EXPECT_EQ(services_->sessions.size(), 3U) << "what was refused stays refused";
  EXPECT_EQ(begin().status, 200);
}

TEST_F(KeptTest, ALimitThatIsSetLaterHoldsForWhatComes) {
  session(), session();
  EXPECT_EQ(begin().status, 422);
  services_->kept.set({.max_sessions = 3, .max_samplers = 2});
  EXPECT_EQ(begin().status, 200);
  services_->kept.set({.max_sessions = 1, .max_samplers = 2});
  EXPECT_EQ(begin().status, 422);
  EXPECT_EQ(services_->sessions.size(), 3U) << "those that are there stay";
}

TEST_F(KeptTest, ATenantHasAtMostSoManySamplersOfBasesAndOfRuns) {
  const std::string id = run(), s = session();
  EXPECT_EQ(sampler(s, 0).status, 200);
  result(publish(id, 1));
  const std::string refusal =
      "server: this tenant has 2 samplers, max_samplers is 2; use those that are there, or ask the "
      "operator for a higher limit";
  EXPECT_EQ(text(sampler(s, 1), "detail"), refusal);
  EXPECT_EQ(sampler(s, 0).status, 200) << "a retry of one that is there";
  EXPECT_EQ(text(publish(id, 2), "detail"), refusal);
  EXPECT_EQ(publish(id, 1).status, 200) << "likewise";
  restart();
  EXPECT_EQ(text(sampler(s, 1), "detail"), refusal);
  EXPECT_EQ(publish(id, 2).status, 422) << "its number is used up";
  EXPECT_EQ(result(train(id, 3)).content_type, "application/x-protobuf");
}

TEST_F(KeptTest, AStateTellsHowManyThereAre) {
  options_.truncation.journal_bytes = 1;
  options_.kept.max_sessions = 1000;
  restart();
  const std::string s = session();
  session(), sampler(s, 0), sampler(s, 1);
  for (int i = 0; i < 200 && services_->truncation.num_taken() < 2; ++i) {
    session("tml-b");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    loop_->run();
  }
  ASSERT_GE(services_->truncation.num_taken(), 2);
  options_.kept.max_sessions = 2;
  restart();
  EXPECT_EQ(begin().status, 422);
  EXPECT_EQ(sampler(s, 7).status, 422);
}

}  // namespace
}  // namespace twinkle::server
