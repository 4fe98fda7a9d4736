// States in the place of the journal's records.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <thread>

#include "twinkle/base/file.h"
#include "twinkle/io/limit_for_test.h"
#include "twinkle/serving/starts/starts_for_test.h"

namespace twinkle::server {
namespace {

namespace fs = std::filesystem;

class StatesTest : public StartsTest {
 protected:
  StatesTest() { serve_with(1); }
  void serve_with(int64_t journal_bytes) {
    options_.saving.journal_bytes = journal_bytes;
    restart();
  }
  // Takes a state of what is now. A new segment begins behind the next record.
  void write_until_a_state_is_taken() {
    const int64_t before = core_->num_states();
    EXPECT_TRUE(until([&] {
      session();
      return core_->num_states() > before;
    }));
  }
};

TEST_F(StatesTest, TheRecordsGoAndWhatTheyHaveMadeStays) {
  const std::string id = run();
  const Response first = train(id, 1), stepped = step(id, 2);
  const std::string told = result(first).body;
  ASSERT_TRUE(compact());
  EXPECT_GT(store::segments_in(dir_ / "journal")[0].first, 8U) << "the run's are gone";
  restart();
  EXPECT_EQ(done(id).size(), 2U);
  EXPECT_EQ(core_->num_done_again(), 2) << "of the records that the state carries";
  EXPECT_EQ(result(first).body, told);
  EXPECT_EQ(train(id, 1).body, first.body);
  EXPECT_TRUE(parse(result(stepped)).contains("metrics"));
  result(train(id, 3));
  EXPECT_EQ(done(id).size(), 3U);
}

TEST_F(StatesTest, GradientsThatNoStepHasTakenAreThere) {
  const std::string id = run();
  result(train(id, 1));
  ASSERT_TRUE(compact());
  restart();
  result(step(id, 2));
  EXPECT_EQ(done(id).size(), 2U);
}

TEST_F(StatesTest, ARequestThatWaitsForItsNumberIsCarriedFromStateToState) {
  const std::string id = run();
  const Response third = train(id, 3);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(compact());
    EXPECT_EQ(std::ranges::count(state().futures, false, &core::Future::is_ended), 1);
    restart();
  }
  EXPECT_EQ(train(id, 3).body, third.body);
  result(train(id, 1));
  result(train(id, 2));
  EXPECT_EQ(result(third).status, 200);
  EXPECT_EQ(done(id).size(), 3U);
}

TEST_F(StatesTest, AFailureBreaksItsWindowThoughItsRecordIsGone) {
  const std::string id = run();
  failure(train(id, 1, "fail"));
  const Response wrong = train(id, 5, "");
  const std::string told = failure(wrong).body;
  ASSERT_TRUE(compact());
  restart();
  failure(step(id, 2));
  EXPECT_EQ(failure(train(id, 5)).body, told) << "the number is used up";
  result(train(id, 3)), result(train(id, 4));
  failure(step(id, 6));
  EXPECT_EQ(result(train(id, 7)).content_type, "application/x-protobuf");
}

TEST_F(StatesTest, ASaveThatEndsBehindALaterStepHoldsWhatWasBeforeIt) {
  std::atomic<bool> is_held = false;
  executor_->on_write = [&] {
    while (is_held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const std::string id = run();
  settle();
  is_held = true;
  result(train(id, 1));
  const Response saved = save(id, 2);
  result(step(id, 3));
  write_until_a_state_is_taken();
  is_held = false;
  result(saved);
  restart();
  EXPECT_EQ(done(id).size(), 2U);
  EXPECT_EQ(result(saved).status, 200);
  const Response loaded = load("tinker://" + id + "/weights/a");
  EXPECT_EQ(done(text(result(loaded), "model_id")).size(), 1U) << "without the step";
}

TEST_F(StatesTest, ASaveThatHadNotEndedIsDoneWithWhatWasBeforeIt) {
  std::atomic<bool> go = false;
  const std::string id = run();
  result(train(id, 1));
  executor_->on_write = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const Response saved = save(id, 2);
  result(step(id, 3));
  write_until_a_state_is_taken();
  core_->close();
  go = true;
  restart();
  result(saved);
  EXPECT_EQ(done(id).size(), 2U);
  const Response loaded = load("tinker://" + id + "/weights/a");
  EXPECT_EQ(done(text(result(loaded), "model_id")).size(), 1U) << "without the step";
}

// A state that is taken between the failure of a request and the end of an earlier one.
TEST_F(StatesTest, ARequestThatFailedBeforeAnEarlierOneEndedIsKnownToHaveCome) {
  const std::string id = run();
  settle();
  std::atomic<bool> go = false;
  executor_->on_batch = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  backend_->on_check = [](const engine::Operation& o) {  // when it is given to the engine
    const auto* save = std::get_if<engine::Save>(&o);
    require(!save || save->as_is, Code::kInvalid, "null: refused");
  };
  const Response second = save(id, 2), first = train(id, 1);
  const std::string told = failure(second).body;
  EXPECT_NE(told.find("null: refused"), std::string::npos);
  write_until_a_state_is_taken();
  core_->close();
  go = true;
  restart();
  result(first);
  EXPECT_EQ(failure(second).body, told);
  result(train(id, 3));
  EXPECT_EQ(done(id).size(), 2U);
}

// The step waits behind another run's batch, and what fails behind it does so before the engine.
TEST_F(StatesTest, AFailureBehindAStepThatHasNotEndedBreaksItsWindowThoughItsRecordIsGone) {
  const std::string id = run(), other = run();
  result(train(id, 1));
  settle();
  std::atomic<bool> go = false, is_held = false;
  executor_->on_batch = [&] {
    is_held = true;
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const Response held = train(other, 1);
  EXPECT_TRUE(until([&] { return is_held.load(); }));  // or the step could come first
  const Response stepped = step(id, 2);
  backend_->on_check = [&](const engine::Operation& operation) {
    require(!std::holds_alternative<engine::ForwardBackward>(operation), Code::kInvalid, "no");
  };
  const Response failed = train(id, 3);
  failure(failed);
  backend_->on_check = {};
  write_until_a_state_is_taken();
  const auto runs = state().runs;
  const auto of = std::ranges::find(runs, id, &core::Run::id);
  ASSERT_NE(of, runs.end());
  EXPECT_TRUE(of->work.contains(2)) << "the step";
  EXPECT_NE(of->broken, "") << "the failure came before the state";
  core_->close();
  go = true;
  restart();
  EXPECT_TRUE(parse(result(stepped)).contains("metrics"));
  EXPECT_EQ(error_of(step(id, 4)).substr(0, 43), "optim_step: a request of its window failed,");
  EXPECT_TRUE(parse(result(step(id, 5))).contains("metrics"));
}

TEST_F(StatesTest, ARunWhoseCreationFailedHoldsNothingUp) {
  const std::string id = run();
  result(save(id, 1));
  fs::remove_all(dir_ / "checkpoints");
  fs::create_directories(dir_ / "checkpoints" / id / "weights/a");
  write_text(dir_ / "checkpoints" / id / "weights/a/damaged", "");
  const Response loaded = load("tinker://" + id + "/weights/a");
  const std::string told = failure(loaded).body;
  const std::string made = text(loaded, "model_id");
  failure(train(made, 1));
  EXPECT_TRUE(compact());
  restart();
  EXPECT_EQ(failure(loaded).body, told);
  failure(train(made, 2));
  result(train(id, 2));
}

TEST_F(StatesTest, ARunWhoseWeightsNoForwardCanUseHoldsNothingUp) {
  const std::string id = run();
  executor_->no_forward_can_use = true;
  result(train(id, 1)), result(step(id, 2));
  failure(save(id, 3));  // no checkpoint is made of it
  run_saves();
  EXPECT_TRUE(compact());
  EXPECT_EQ(core_->num_states_given_up(), 0);
  restart();
  EXPECT_EQ(done(id).size(), 2U);
  EXPECT_EQ(executor_->num_batches, 0);
}

TEST_F(StatesTest, OneThatCannotBeWrittenIsGivenUpAndTriedAgain) {
  core::set_fault_point([](std::string_view name) {
    if (name == "before state rename") fail(Code::kInvalid, "the disk is full");
  });
  fs::remove(core::state_file(dir_ / "journal"));
  const std::string id = run();
  result(train(id, 1));
  EXPECT_TRUE(until([&] {
    session();
    return core_->num_states_given_up() > 0;
  }));
  EXPECT_FALSE(is_there(core::state_file(dir_ / "journal")));
  core::set_fault_point({});
  EXPECT_TRUE(compact());
  restart();
  EXPECT_EQ(done(id).size(), 1U);
}

TEST_F(StatesTest, OneThatIsBeingWrittenWhenTheServerEndsHarmsNothing) {
  std::atomic<bool> is_written = false, ends = false;
  core::set_fault_point([&](std::string_view name) {
    if (name != "before state rename") return;
    is_written = true;
    while (!ends) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  const std::string id = run();
  result(train(id, 1));
  EXPECT_TRUE(until([&] {
    session();
    return is_written.load();
  }));
  std::thread closing([&] { core_->close(); });  // waits for it
  ends = true;
  closing.join();
  loop_->pass(std::chrono::seconds(10));
  core::set_fault_point({});
  restart();
  EXPECT_EQ(done(id).size(), 1U);
}

// Segments of one record each are shorter than the limit, a state of many results is longer.
TEST_F(StatesTest, ADiskThatIsTooFullForTheStateAloneHoldsNobodyUp) {
  std::signal(SIGXFSZ, SIG_IGN);
  options_.journal.segment_bytes = 1;
  serve_with(1);
  const std::string id = run();
  std::vector<Response> acks;
  for (int64_t seq_id = 1; seq_id <= 40; ++seq_id) acks.push_back(train(id, seq_id));
  settle();
  {
    const LimitForTest full(RLIMIT_FSIZE, 2000);
    EXPECT_FALSE(compact());
    EXPECT_GT(core_->num_states_given_up(), 0);
    EXPECT_EQ(core_->log().trouble(), "");
    acks.push_back(train(id, 41));
    settle();
    restart();  // from the state before, and its records
    settle();
  }
  EXPECT_TRUE(compact());
  EXPECT_GT(fs::file_size(core::state_file(dir_ / "journal")), 2000U);
  restart();
  EXPECT_EQ(done(id).size(), 41U);
  for (const Response& ack : acks) EXPECT_EQ(result(ack).status, 200);
}

TEST_F(StatesTest, AKillBetweenTheStateAndTheTruncationIsRepaired) {
  core::set_fault_point([](std::string_view name) {
    if (name == "before truncation") fail(Code::kInvalid, "killed");
  });
  const std::string id = run();
  result(train(id, 1));
  EXPECT_TRUE(until([&] {
    session();
    loop_->pass(std::chrono::seconds(1));
    return core_->num_states_given_up() > 2;
  }));
  EXPECT_TRUE(is_there(core::state_file(dir_ / "journal")));
  const size_t num_segments = store::segments_in(dir_ / "journal").size();
  end();
  core::set_fault_point({});
  restart();
  EXPECT_EQ(done(id).size(), 1U);
  EXPECT_LT(store::segments_in(dir_ / "journal").size(), num_segments);
}

TEST_F(StatesTest, OneWithoutTheRecordsBehindItIsRefusedByName) {
  run();
  ASSERT_TRUE(compact());
  run();
  end();
  const fs::path state = core::state_file(dir_ / "journal"), aside = dir_ / "aside";
  fs::rename(state, aside);
  EXPECT_NE(refusal_of_start().find("are missing; restore a backup"), std::string::npos);
  fs::rename(aside, state);
  fs::resize_file(state, fs::file_size(state) - 1);
  EXPECT_NE(refusal_of_start().find("ends too early"), std::string::npos);
}

}  // namespace
}  // namespace twinkle::server
