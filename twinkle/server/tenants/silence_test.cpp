#include "twinkle/server/tenants/silence.h"

#include <atomic>

#include "twinkle/base/error.h"
#include "twinkle/server/service_for_test.h"

namespace twinkle::server {
namespace {

using std::chrono::seconds;

class SilenceTest : public ServiceTest {
 protected:
  SilenceTest() { restart(); }
  void restart() {
    open();
    go_on();
  }
  // So far; a run that is parked already counts each time.
  int64_t num_parks() {
    while (dispatcher_->stats().num_queued > 0) loop_->run();
    return executor_->num_parks;
  }
  int heartbeat(const std::string& run) {
    return post("/api/v1/session_heartbeat", {{"session_id", run.substr(0, run.find(':'))}}).status;
  }
};

TEST_F(SilenceTest, SavesAndParksTheRunsOfASilentSession) {
  const std::string id = run();
  result(train(id, 1));
  loop_->pass(seconds(299));
  EXPECT_EQ(num_parks(), 0);
  EXPECT_EQ(services_->snapshots.last(id), -1);
  loop_->pass(seconds(76));
  EXPECT_EQ(num_parks(), 1);
  EXPECT_TRUE(loop_->run_until([&] { return services_->snapshots.last(id) == 1; }));
  result(step(id, 2));
  EXPECT_EQ(done(id).size(), 2U) << "it goes on";
  loop_->pass(seconds(299));
  EXPECT_EQ(num_parks(), 1) << "it was heard";
  loop_->pass(seconds(76));
  EXPECT_EQ(num_parks(), 2) << "silent again";
}

TEST_F(SilenceTest, ARunThatCouldNotBeParkedIsTriedAgainWhateverElseIsParked) {
  backend_->parked.num_parked = 1;  // another's
  run();
  loop_->pass(seconds(375));
  EXPECT_EQ(num_parks(), 1);
  loop_->pass(seconds(75));
  EXPECT_EQ(num_parks(), 2);
}

TEST_F(SilenceTest, ARunThatTheDiskRefusesIsSavedOnceInASilenceAndParkedAgainEachTime) {
  std::atomic<int> num_saves = 0;
  executor_->on_write = [&] {
    ++num_saves;
    fail(Code::kInternal, "null: the disk is full");
  };
  const std::string id = run();
  result(train(id, 1));
  const auto is_over = [&] { return !services_->snapshots.is_saving(); };
  loop_->pass(seconds(375));
  EXPECT_TRUE(loop_->run_until(is_over));
  EXPECT_EQ(num_saves, 1);
  for (int i = 0; i < 3; ++i) {
    loop_->pass(seconds(75));
    EXPECT_TRUE(loop_->run_until(is_over));
  }
  EXPECT_EQ(num_saves, 1);
  EXPECT_EQ(num_parks(), 4);
  EXPECT_EQ(heartbeat(id), 200);
  loop_->pass(seconds(375));
  EXPECT_TRUE(loop_->run_until(is_over));
  EXPECT_EQ(num_saves, 2) << "another silence";
}

TEST_F(SilenceTest, AHeartbeatKeepsASessionsRunsAndNobodyElses) {
  const std::string heard = run(), silent = run();
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(heartbeat(heard), 200);
    loop_->pass(seconds(50));
  }
  EXPECT_EQ(num_parks(), 1);
}

TEST_F(SilenceTest, APollAndASampleAreHeard) {
  const std::string id = run();
  const Response published =
      post("/api/v1/save_weights_for_sampler", {{"model_id", id}, {"seq_id", 1}});
  const std::string sampler = text(result(published), "sampling_session_id");
  for (int i = 0; i < 10; ++i) {
    if (i % 2 == 0)
      result(published);
    else
      EXPECT_EQ(answer([&] {
                  Request r = request("/api/v1/samplers/" + sampler, "", "tml-a");
                  r.method = "GET";
                  return r;
                }())
                    .status,
                200);
    loop_->pass(seconds(50));
  }
  EXPECT_EQ(num_parks(), 0);
}

TEST_F(SilenceTest, ARunThatWorksIsNotParked) {
  const std::string id = run();
  std::atomic<bool> go = false;
  executor_->on_batch = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const Response ack = train(id, 1);
  loop_->pass(seconds(1000));
  go = true;
  EXPECT_EQ(num_parks(), 0);
  result(ack);
}

TEST_F(SilenceTest, IsCountedFromTheServersStart) {
  run();
  loop_->pass(seconds(290));
  restart();
  loop_->pass(seconds(290));
  EXPECT_EQ(num_parks(), 0);
  loop_->pass(seconds(160));
  EXPECT_GT(num_parks(), 0);
}

TEST_F(SilenceTest, IsNotCountedAtZero) {
  options_.silence.park_after = seconds(0);
  restart();
  run();
  loop_->pass(seconds(5000));
  EXPECT_EQ(num_parks(), 0);
}

TEST_F(SilenceTest, IsCountedByTheTimeThatIsSetLast) {
  options_.silence.park_after = seconds(0);
  restart();
  run();
  for (int i = 0; i < 3; ++i) services_->silence.set({.park_after = seconds(40)});
  loop_->pass(seconds(39));
  EXPECT_EQ(num_parks(), 0) << "one check in ten seconds, however often it is set";
  loop_->pass(seconds(2));
  EXPECT_EQ(num_parks(), 1);
  services_->silence.set({.park_after = seconds(0)});
  loop_->pass(seconds(5000));
  EXPECT_EQ(num_parks(), 1);
}

}  // namespace
}  // namespace twinkle::server
