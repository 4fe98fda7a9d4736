// The service, killed and started again on the same folder, over a null model.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <random>
#include <set>
#include <thread>

#include "twinkle/base/file.h"
#include "twinkle/io/limit_for_test.h"
#include "twinkle/serving/starts/starts_for_test.h"

namespace twinkle::server {
namespace {

using Strings = std::vector<std::string>;

class KillsTest : public StartsTest {
 protected:
  // A new sampler's: the number of the sample for which there is no room; then it is killed.
  int64_t refused_for_room(std::string& id) {
    open({.max_queued = 3});
    restart();
    id = sampler();
    std::atomic<bool> go = false;
    executor_->on_step = [&] {
      while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    int64_t seq = 0;
    while (sample(id, ++seq).status == 200) {
    }
    core_->close();
    go = true;
    end();
    open();
    return seq;
  }
};

TEST_F(KillsTest, WhatWasToldIsThereAndTheClientGoesOn) {
  const std::string id = run();
  const Response first = train(id, 1), stepped = step(id, 2);
  const std::string told = result(first).body;
  result(stepped);
  restart();
  EXPECT_EQ(kinds(id), (Strings{"train", "step"}));
  EXPECT_EQ(train(id, 1).body, first.body);  // a retry of what was done
  EXPECT_EQ(result(first).body, told);
  result(train(id, 3));
  EXPECT_EQ(kinds(id), (Strings{"train", "step", "train"}));
  restart();
  EXPECT_EQ(kinds(id), (Strings{"train", "step", "train"}));
}

TEST_F(KillsTest, WhatWasAcceptedAndNotDoneIsDone) {
  const std::string id = run(), of_base = sampler();
  std::atomic<bool> go = false;
  executor_->on_batch = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const Response third = train(id, 3), second = step(id, 2), first = train(id, 1),
                 sampled = sample(of_base, 0);
  core_->close();
  go = true;
  restart();
  EXPECT_EQ(result(first).status, 200);
  EXPECT_TRUE(parse(result(second)).contains("metrics"));
  EXPECT_EQ(result(third).status, 200);
  EXPECT_EQ(result(sampled).content_type, "application/x-protobuf");
  EXPECT_EQ(kinds(id), (Strings{"train", "step", "train"}));
}

TEST_F(KillsTest, WhatFailedIsNotTriedAgainAndFailsItsWindowAsBefore) {
  const std::string id = run();
  const Response bad = train(id, 1, "fail");
  const std::string told = failure(bad).body;
  restart();
  settle();
  EXPECT_EQ(executor_->num_batches, 0);
  EXPECT_EQ(failure(bad).body, told);
  failure(step(id, 2));
  EXPECT_TRUE(parse(result(step(id, 3))).contains("metrics"));
}

TEST_F(KillsTest, WhatFailedForWantOfMemoryEndsAsItDidThoughThereIsMemoryNow) {
  const std::string id = run();
  result(train(id, 1));
  executor_->no_memory = true;
  const Response failed = train(id, 2);
  const std::string told = failure(failed).body;
  EXPECT_EQ(told, R"({"error":"std::bad_alloc","category":"server"})");
  executor_->no_memory = false;
  result(train(id, 3));
  const Response stepped = step(id, 4);
  const std::string step_told = failure(stepped).body;
  result(train(id, 5));
  const auto expect_as_told = [&] {
    EXPECT_EQ(failure(failed).body, told);
    EXPECT_EQ(failure(stepped).body, step_told);
    EXPECT_EQ(kinds(id), (Strings{"train", "train", "train"}));
    EXPECT_EQ(train(id, 2).body, failed.body) << "a retry is the first";
  };
  expect_as_told();
  restart();
  expect_as_told();
}

TEST_F(KillsTest, ASamplerThatIsMadeAgainIsTheFirst) {
  const std::string s = session();
  const auto make = [&](int64_t number) {
    return text(sampler_of(s, number, "base_model", "null"), "sampling_session_id");
  };
  const std::string first = make(3), second = make(4);
  EXPECT_NE(first, second);
  const Response sampled = sample(first, 0);
  const std::string told = result(sampled).body;
  for (int i = 0; i < 2; ++i) {
    restart();
    EXPECT_EQ(make(3), first);
    EXPECT_EQ(make(4), second);
    EXPECT_EQ(core_->domain().samplers().size(), 2U);
    EXPECT_EQ(sample(first, 0).body, sampled.body);
    EXPECT_EQ(result(sampled).body, told);
  }
}

TEST_F(KillsTest, ANumberThatFailedHasItsErrorAndIsUsedUp) {
  const std::string id = run();
  const Response wrong = post("/api/v1/optim_step", {{"model_id", id}, {"seq_id", 1}});
  const std::string told = failure(wrong).body;
  EXPECT_EQ(text(failure(wrong), "category"), "user");
  restart();
  EXPECT_EQ(failure(wrong).body, told);
  EXPECT_EQ(step(id, 1).body, wrong.body) << "the same number is the same request";
  result(step(id, 2));
  EXPECT_EQ(failure(step(id, 1)).body, told);
}

TEST_F(KillsTest, ARequestForWhichThereWasNoRoomIsNotDoneByAStart) {
  std::string id;
  const int64_t seq = refused_for_room(id);
  restart();
  EXPECT_EQ(poll(id + ":" + std::to_string(seq)).status, 404);
  EXPECT_TRUE(until([&] { return core_->domain().num_open() == 0; }));
  EXPECT_EQ(result(sample(id, seq)).status, 200);
}

TEST_F(KillsTest, AResultThatWasReadIsKeptTenMinutesOfTheServersTime) {
  const std::string id = run();
  const Response read = train(id, 1), unread = train(id, 2);
  result(read);
  EXPECT_TRUE(until([&] { return core_->domain().num_open() == 0; }));
  restart();
  EXPECT_EQ(poll(id + ":1").status, 200);
  loop_->pass(std::chrono::seconds(601));
  EXPECT_EQ(poll(id + ":1").status, 404);
  EXPECT_EQ(poll(id + ":2").status, 200);
}

TEST_F(KillsTest, TwoSavesOfANameThatAreUnderWayHaveTheirOwnFolders) {
  const std::string id = run();
  const Response second = save(id, 2, "a", true), first = save(id, 1, "a", true);
  result(first), result(second);
  const auto folder = dir_ / "checkpoints" / id / "weights";
  EXPECT_EQ(core_->domain().checkpoint(id + "/weights/a")->folder,
            "checkpoints/" + id + "/weights/a");
  EXPECT_TRUE(is_there(folder / "a"));
  EXPECT_TRUE(until([&] { return !is_there(folder / "a@1"); })) << "it was overwritten";
}

TEST_F(KillsTest, ASaveThatFailedBehindALaterStepStaysFailed) {
  std::atomic<bool> go = false;
  executor_->on_write = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    fail(Code::kInternal, "null: the disk is full");
  };
  const std::string id = run();
  result(train(id, 1));
  const Response saved = save(id, 2);
  EXPECT_TRUE(parse(result(step(id, 3))).contains("metrics")) << "it does not wait for the disk";
  go = true;
  const std::string told = failure(saved).body;
  EXPECT_NE(told.find("the disk is full"), told.npos);
  restart();
  EXPECT_EQ(failure(saved).body, told);
  EXPECT_EQ(kinds(id), (Strings{"train", "step"}));
}

TEST_F(KillsTest, IdsAreTheSameAndASampleWithoutASeedKeepsTheOneItGot) {
  const std::string of_base = sampler();
  const Response sampled = sample(of_base, 0);
  const std::string told = result(sampled).body;
  restart();
  EXPECT_EQ(result(sampled).body, told);
  EXPECT_EQ(sample(of_base, 0).body, sampled.body);
  EXPECT_EQ(result(sample(of_base, 1)).status, 200);
}

TEST_F(KillsTest, AnOperationThatEndsOtherwiseWhenItIsDoneAgainLosesItsRunByName) {
  const std::string id = run(), other = run();
  const Response first = train(id, 1);
  const std::string told = result(first).body;
  on_batch_ = [] { fail(Code::kInvalid, "null: not this time"); };
  restart();
  on_batch_ = {};
  settle();
  const std::string why = core_->domain().run(id)->lost;
  EXPECT_NE(why.find("'" + id + ":1' ended otherwise"), std::string::npos) << why;
  EXPECT_NE(why.find("null: not this time"), std::string::npos) << why;
  EXPECT_EQ(result(first).body, told) << "what was told stays";
  const Response refused = train(id, 2);
  EXPECT_EQ(error_of(refused), why);
  EXPECT_EQ(text(failure(refused), "category"), "server");
  result(step(other, 1));
  restart();  // where it ends as before
  result(train(id, 3));
  EXPECT_EQ(kinds(id), (Strings{"train", "train"}));
}

TEST_F(KillsTest, WhatASnapshotHoldsIsNotDoneAgain) {
  const std::string id = run();
  result(train(id, 1));
  result(step(id, 2));
  run_saves();
  ASSERT_EQ(saved(id), 2);
  const Response published = publish(id, 3);
  result(published);
  result(train(id, 4));
  restart();
  EXPECT_EQ(kinds(id), (Strings{"train", "step", "train"}));
  EXPECT_EQ(executor_->num_batches, 1);
  result(step(id, 5));
  run_saves();
  restart();
  EXPECT_EQ(kinds(id), (Strings{"train", "step", "train", "step"}));
  EXPECT_EQ(executor_->num_batches, 0);
  EXPECT_EQ(result(published).status, 200);
  const auto older = dir_ / "snapshots" / id / "2";
  EXPECT_TRUE(until([&] { return !is_there(older); })) << "the older one goes";
}

// Too short for a snapshot otherwise, each of which a start would train again.
TEST_F(KillsTest, WhatARunHasDoneWhenItsSessionEndsIsNotDoneAgain) {
  const std::string id = run(), untrained = run();
  result(train(id, 1));
  result(step(id, 2));
  EXPECT_EQ(saved(id), -1);
  for (const std::string& of : {id, untrained})
    post("/api/v1/sessions/" + of.substr(0, of.find(':')) + "/finish", JsonObject{});
  EXPECT_TRUE(is_saved(id, 2));
  EXPECT_EQ(saved(untrained), -1);
  restart();
  EXPECT_EQ(kinds(id), (Strings{"train", "step"}));
  EXPECT_EQ(executor_->num_batches, 0);
}

TEST_F(KillsTest, WhatRunsHaveDoneWhenTheServerEndsIsNotDoneAgain) {
  const std::string first = run(), second = run(), untrained = run();
  result(train(first, 1));
  result(step(first, 2));
  result(train(second, 1));  // gradients that no step has taken
  run_saves();
  EXPECT_EQ(saved(first), 2);
  EXPECT_EQ(saved(second), 1);
  EXPECT_EQ(saved(untrained), -1);
  restart();
  EXPECT_EQ(kinds(first), (Strings{"train", "step"}));
  EXPECT_EQ(kinds(second), Strings{"train"});
  EXPECT_EQ(executor_->num_batches, 0);
}

TEST_F(KillsTest, TheEngineLetsVersionsGoThatASnapshotHolds) {
  const std::string id = run();
  std::vector<std::string> samplers;
  std::set<int64_t> released;
  const auto watch = [&] {
    backend_->on_check = [&](const engine::Operation& operation) {
      if (const auto* op = std::get_if<engine::Release>(&operation)) released.insert(op->version);
    };
  };
  watch();
  for (int64_t seq = 1; seq <= 6; seq += 2) {
    samplers.push_back(text(result(publish(id, seq)), "sampling_session_id"));
    result(step(id, seq + 1));
    run_saves();
  }
  EXPECT_EQ(released, (std::set<int64_t>{1, 2})) << "the newest stays";
  for (const std::string& s : samplers) EXPECT_EQ(result(sample(s, 0)).status, 200);
  restart();
  for (const std::string& s : samplers) EXPECT_EQ(result(sample(s, 1)).status, 200);
}

// Requests in any order, killed at any moment: a client that sends again what it was not told of
// gets what it would have got. With a snapshot behind each operation, and without.
TEST_F(KillsTest, AtAnyMomentChangeNothing) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    options_.saving.again_seconds = seed % 2 * 1000;
    const std::string id = run();
    Strings expected;
    bool broken = false;
    for (int64_t seq = 1; seq <= 12; ++seq) {
      const unsigned what = random() % 6;
      const auto send = [&] {
        return what == 0 ? step(id, seq) : train(id, seq, what == 1 ? "fail" : "cross_entropy");
      };
      if (random() % 4 == 0) {
        send();
        restart();
      }
      const Response ack = send();
      if (random() % 4 == 0) restart();
      if (random() % 2 == 0) outcome(ack);
      if (random() % 4 == 0) restart();
      if (what == 0 && !broken) expected.emplace_back("step");
      if (what > 1) expected.emplace_back("train");
      if (what < 2) broken = what == 1;
    }
    restart();
    EXPECT_TRUE(until([&] { return core_->domain().num_open() == 0; }));
    EXPECT_EQ(kinds(id), expected) << "seed " << seed;
  }
}

// A folder that is ahead may be of a journal whose end was not copied.
TEST_F(KillsTest, AStartRemovesWhatIsBehindTheSnapshotsOfTheJournalAndNothingThatIsAhead) {
  const std::string id = run();
  result(train(id, 1));
  result(publish(id, 2));
  result(step(id, 3));
  run_saves();
  const auto folder = dir_ / "snapshots" / id;
  for (const char* left : {"2", ".1.gone", ".3.partial-0123456789ab", "99", "version-2"})
    std::filesystem::create_directories(folder / left / "x");
  std::filesystem::create_directories(dir_ / "snapshots/other/1");
  restart();
  std::error_code error;
  Strings names = names_in(folder, error);
  std::ranges::sort(names);
  EXPECT_EQ(names, (Strings{"3", "99", "version-1", "version-2"}));
  EXPECT_EQ(names_in(dir_ / "snapshots/other", error).size(), 1U);
}

TEST_F(KillsTest, AStartWhoseDiskRefusesEndsByName) {
  std::signal(SIGXFSZ, SIG_IGN);
  const std::string id = run();
  {
    const LimitForTest full(RLIMIT_FSIZE, 1);
    const std::string refusal = refusal_of_start();
    EXPECT_EQ(refusal.find("store: cannot write to " + dir_.path().string()), 0U) << refusal;
  }
  restart();
  EXPECT_EQ(step(id, 1).status, 200);
}

}  // namespace
}  // namespace twinkle::server
