// States in the place of records.
#include "twinkle/server/history/truncation.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "twinkle/base/error.h"
#include "twinkle/base/fault/fault.h"
#include "twinkle/base/file.h"
#include "twinkle/io/limit_for_test.h"
#include "twinkle/server/history/state_file.h"
#include "twinkle/server/history/truncation_for_test.h"

namespace {
using AtFaultPoint = std::function<void(std::string_view name)>;
std::mutex mutex;
std::shared_ptr<AtFaultPoint> at_fault_point;
}  // namespace

void twinkle::reach_fault_point(std::string_view name) {
  std::shared_ptr<AtFaultPoint> now;
  {
    const std::lock_guard lock(mutex);
    now = at_fault_point;
  }
  if (now && *now) (*now)(name);  // may wait, while other threads come to other points
}

void twinkle::server::set_fault_point(std::function<void(std::string_view)> then) {
  const auto made = std::make_shared<AtFaultPoint>(std::move(then));
  const std::lock_guard lock(mutex);
  at_fault_point = made;
}

namespace twinkle::server {
namespace {

namespace fs = std::filesystem;

TEST_F(TruncationTest, TheRecordsGoAndWhatTheyHaveMadeStays) {
  const std::string id = run();
  const Response first = train(id, 1), stepped = step(id, 2);
  const std::string told = result(first).body;
  ASSERT_TRUE(truncate());
  EXPECT_GT(store::segments_in(dir_ / "journal")[0].first, 8U) << "the run's are gone";
  restart();
  EXPECT_EQ(executor_->num_batches, 0) << "nothing is computed again";
  EXPECT_EQ(result(first).body, told);
  EXPECT_EQ(train(id, 1).body, first.body);
  EXPECT_TRUE(parse(result(stepped)).contains("metrics"));
  result(train(id, 3));
  EXPECT_EQ(done(id).size(), 3U);
}

TEST_F(TruncationTest, GradientsThatNoStepHasTakenAreInTheState) {
  const std::string id = run();
  result(train(id, 1));
  ASSERT_TRUE(truncate());
  restart();
  EXPECT_EQ(executor_->num_batches, 0);
  result(step(id, 2));
  EXPECT_EQ(done(id).size(), 2U);
}

TEST_F(TruncationTest, ARequestThatWaitsForItsNumberIsCarriedFromStateToState) {
  const std::string id = run();
  const Response third = train(id, 3);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(truncate());
    EXPECT_EQ(num_carried(), 1);
    restart();
  }
  EXPECT_EQ(train(id, 3).body, third.body);
  result(train(id, 1));
  result(train(id, 2));
  EXPECT_EQ(result(third).status, 200);
  EXPECT_EQ(done(id).size(), 3U);
}

TEST_F(TruncationTest, AFailureBreaksItsWindowThoughItsRecordIsGone) {
  const std::string id = run();
  failure(train(id, 1, "fail"));
  EXPECT_EQ(train(id, 5, "").status, 422);
  ASSERT_TRUE(truncate());
  restart();
  failure(step(id, 2));
  EXPECT_EQ(train(id, 5).status, 422) << "the number is used up";
  result(train(id, 3)), result(train(id, 4));
  failure(step(id, 6));
  EXPECT_EQ(result(train(id, 7)).content_type, "application/x-protobuf");
}

TEST_F(TruncationTest, ASaveThatEndsBehindALaterStepHoldsWhatWasBeforeIt) {
  std::atomic<bool> is_held = false;
  executor_->on_write = [&] {
    while (is_held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const std::string id = run();
  settle();
  is_held = true;
  result(train(id, 1));
  const Response saved =
      post("/api/v1/save_weights", {{"model_id", id}, {"seq_id", 2}, {"path", "a"}});
  result(step(id, 3));
  for (int i = 0; i < 9; ++i) session();  // records, behind which a state may be taken
  const int64_t before = services_->truncation.num_taken();
  is_held = false;
  EXPECT_TRUE(loop_->run_until([&] { return services_->truncation.num_taken() > before; }));
  restart();
  EXPECT_EQ(done(id).size(), 2U);
  EXPECT_EQ(result(saved).status, 200);
  const Response loaded = post(
      "/api/v1/load_weights",
      {{"session_id", session()}, {"model_seq_id", 0}, {"path", "tinker://" + id + "/weights/a"}});
  EXPECT_EQ(done(text(result(loaded), "model_id")).size(), 1U) << "without the step";
}

// A state that is taken between the failure of a request and the end of an earlier one.
TEST_F(TruncationTest, ARequestThatFailedBeforeAnEarlierOneEndedIsKnownToHaveCome) {
  const std::string id = run();
  settle();
  serve_with(2000);
  std::atomic<bool> go = false;
  executor_->on_batch = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const Response second =
      post("/api/v1/save_weights", {{"model_id", id}, {"seq_id", 2}, {"path", "a"}});
  backend_->on_check = [](const engine::Operation& o) {  // when it is given to the engine
    const auto* save = std::get_if<engine::Save>(&o);
    require(!save || save->as_is, Code::kInvalid, "null: refused");
  };
  const Response first = train(id, 1);
  const std::string told = failure(second).body;
  EXPECT_NE(told.find("null: refused"), std::string::npos);
  write_until_a_state_is_taken();
  go = true;
  EXPECT_TRUE(loop_->run_until([&] { return services_->truncation.num_taken() > 0; }));
  EXPECT_EQ(StateReader(dir_ / "journal").state().runs.at(0).next, 1);
  restart();
  result(first);
  EXPECT_EQ(failure(second).body, told);
  result(train(id, 3));
  EXPECT_EQ(done(id).size(), 2U);
}

// The step waits behind another run's batch, and what fails behind it does so before the engine.
TEST_F(TruncationTest, AFailureBehindAStepThatHasNotEndedBreaksItsWindowThoughItsRecordIsGone) {
  const std::string id = run(), other = run();
  result(train(id, 1));
  settle();
  serve_with(services_->history.bytes() + 4000);
  std::atomic<bool> go = false, is_held = false;
  executor_->on_batch = [&] {
    is_held = true;
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const Response held = train(other, 1);
  while (!is_held) {  // or the step could come first
    loop_->run();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const Response stepped = step(id, 2);
  backend_->on_check = [&](const engine::Operation& operation) {
    require(!std::holds_alternative<engine::ForwardBackward>(operation), Code::kInvalid, "no");
  };
  const Response failed = train(id, 3);
  failure(failed);
  backend_->on_check = {};
  write_until_a_state_is_taken();
  go = true;
  EXPECT_TRUE(loop_->run_until([&] { return services_->truncation.num_taken() > 0; }));
  const State state = StateReader(dir_ / "journal").state();
  const auto of = std::ranges::find(state.runs, id, &RunState::id);
  ASSERT_NE(of, state.runs.end());
  EXPECT_EQ(of->next, 2) << "the step";
  ASSERT_EQ(of->refused.size(), 1U);
  EXPECT_EQ(of->refused[0].seq_id, 3) << "the failure came before the state";
  restart();
  EXPECT_TRUE(parse(result(stepped)).contains("metrics"));
  EXPECT_EQ(text(failure(step(id, 4)), "error").substr(0, 43),
            "optim_step: a request of its window failed,");
  EXPECT_TRUE(parse(result(step(id, 5))).contains("metrics"));
}

TEST_F(TruncationTest, ARunWhoseCreationFailedHoldsNothingUp) {
  const std::string id = run();
  result(post("/api/v1/save_weights", {{"model_id", id}, {"seq_id", 1}, {"path", "a"}}));
  const std::string path = "tinker://" + id + "/weights/a", other = session();
  fs::remove_all(dir_ / "checkpoints");
  fs::create_directories(dir_ / "checkpoints" / id / "weights/a/null");  // no file
  result(post("/api/v1/load_weights",
              {{"session_id", other}, {"model_seq_id", 0}, {"path", path}, {"optimizer", true}}));
  EXPECT_TRUE(truncate());
  restart();
}

TEST_F(TruncationTest, ARunWhoseWeightsNoForwardCanUseHoldsNothingUp) {
  const std::string id = run();
  executor_->no_forward_can_use = true;
  const auto save = [&](int64_t seq_id) {
    return post("/api/v1/save_weights", {{"model_id", id}, {"seq_id", seq_id}, {"path", "a"}});
  };
  result(train(id, 1)), result(step(id, 2));
  failure(save(3));  // no checkpoint is made of it
  EXPECT_TRUE(truncate());
  EXPECT_EQ(services_->truncation.num_given_up(), 0);
  restart();
  EXPECT_EQ(executor_->num_batches, 0);
  EXPECT_EQ(done(id).size(), 2U);
}

TEST_F(TruncationTest, AStateThatCannotBeWrittenIsGivenUpAndTriedAgain) {
  set_fault_point([](std::string_view name) {
    if (name == "before state rename") fail(Code::kInvalid, "the disk is full");
  });
  const std::string id = run();
  result(train(id, 1));
  EXPECT_FALSE(truncate());
  EXPECT_GT(services_->truncation.num_given_up(), 0);
  EXPECT_FALSE(is_there(state_file(dir_ / "journal")));
  set_fault_point({});
  loop_->pass(std::chrono::seconds(2));
  EXPECT_TRUE(truncate());
  restart();
  EXPECT_EQ(done(id).size(), 1U);
}

TEST_F(TruncationTest, AStateThatIsBeingWrittenWhenTheServerEndsIsGivenUp) {
  std::atomic<bool> is_written = false, ends = false;
  set_fault_point([&](std::string_view name) {
    if (name != "before state rename") return;
    is_written = true;
    while (!ends) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  const std::string id = run();
  result(train(id, 1));
  for (int i = 0; i < 10000 && !is_written; ++i) {
    loop_->run();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_TRUE(is_written);
  services_->close([&] {  // when it is told to end
    ends = true;
    loop_->run();
  });
  dispatcher_->close();
  services_.reset();
  dispatcher_.reset();
  EXPECT_FALSE(is_there(state_file(dir_ / "journal")));
  restart();
  EXPECT_EQ(done(id).size(), 1U);
}

// It ends between two syncs, of which none has more to write.
TEST_F(TruncationTest, ALongStateIsSyncedInPartsAndGivenUpBetweenThem) {
  State state;
  state.sessions.push_back({.id = std::string(150 << 10, 'x')});
  const fs::path folder = dir_ / "long";
  fs::create_directory(folder);
  int num_syncs = 0, most = 3;
  set_fault_point([&](std::string_view name) { num_syncs += name == "before a state's sync"; });
  const auto write = [&] {
    write_state(folder, state, [&] { return num_syncs == most; }, 64 << 10);
  };
  write();
  EXPECT_EQ(num_syncs, 2);
  EXPECT_EQ(StateReader(folder).state().sessions.at(0).id, state.sessions[0].id);
  fs::remove(state_file(folder));
  num_syncs = 0, most = 1;
  EXPECT_THROW(write(), Error);
  EXPECT_EQ(num_syncs, 1);
  EXPECT_FALSE(is_there(state_file(folder)));
}

// Segments of one record each are shorter than the limit, a state of many results is longer.
TEST_F(TruncationTest, ADiskThatIsTooFullForTheStateAloneHoldsNobodyUp) {
  std::signal(SIGXFSZ, SIG_IGN);
  options_.journal.segment_bytes = 1;
  serve_with(1);
  const std::string id = run();
  std::vector<Response> acks;
  for (int64_t seq_id = 1; seq_id <= 40; ++seq_id) acks.push_back(train(id, seq_id));
  settle();
  {
    const LimitForTest full(RLIMIT_FSIZE, 2000);
    EXPECT_FALSE(truncate());
    EXPECT_GT(services_->truncation.num_given_up(), 0);
    EXPECT_EQ(services_->history.trouble(), "");
    acks.push_back(train(id, 41));
    settle();
    restart();  // from the state before, and its records
  }
  loop_->pass(std::chrono::seconds(2));
  EXPECT_TRUE(truncate());
  EXPECT_GT(fs::file_size(state_file(dir_ / "journal")), 2000U);
  restart();
  EXPECT_EQ(done(id).size(), 41U);
  for (const Response& ack : acks) EXPECT_EQ(result(ack).status, 200);
}

TEST_F(TruncationTest, AKillBetweenTheStateAndTheTruncationIsRepaired) {
  set_fault_point([](std::string_view name) {
    if (name == "before truncation") fail(Code::kInvalid, "killed");
  });
  const std::string id = run();
  result(train(id, 1));
  EXPECT_FALSE(truncate());
  EXPECT_TRUE(is_there(state_file(dir_ / "journal")));
  const size_t num_segments = store::segments_in(dir_ / "journal").size();
  close();
  set_fault_point({});
  restart();
  EXPECT_EQ(done(id).size(), 1U);
  EXPECT_LT(store::segments_in(dir_ / "journal").size(), num_segments);
}

TEST_F(TruncationTest, AStateWithoutTheRecordsBehindItIsRefusedByName) {
  run();
  ASSERT_TRUE(truncate());
  run();
  close();
  const auto refusal = [&] {
    try {
      restart();
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const fs::path state = state_file(dir_ / "journal"), aside = dir_ / "aside";
  fs::rename(state, aside);
  EXPECT_NE(refusal().find("are missing; restore a backup"), std::string::npos) << "no state";
  fs::rename(aside, state);
  fs::resize_file(state, fs::file_size(state) - 1);
  EXPECT_NE(refusal().find("ends too early"), std::string::npos);
}

}  // namespace
}  // namespace twinkle::server
