// The service, killed and started again on the same folder, over a null model.
#include "twinkle/server/history/history.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <random>
#include <thread>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"
#include "twinkle/io/atomic.h"
#include "twinkle/io/limit_for_test.h"
#include "twinkle/server/service_for_test.h"
#include "twinkle/store/journal.h"
#include "twinkle/store/segment.h"

namespace twinkle::server {
namespace {

class HistoryTest : public ServiceTest {
 protected:
  HistoryTest() { go_on(); }
  void restart() {
    open();
    go_on();
  }
  Response poll(const std::string& request_id) {
    return post("/api/v1/retrieve_future", {{"request_id", request_id}});
  }
  std::string sampler() {
    return text(
        post("/api/v1/create_sampling_session",
             {{"session_id", session()}, {"sampling_session_seq_id", 0}, {"base_model", "null"}}),
        "sampling_session_id");
  }
  Response sample(const std::string& sampler, int64_t seq_id) {
    return post("/api/v1/asample",
                {{"sampling_session_id", sampler},
                 {"seq_id", seq_id},
                 {"num_samples", 1},
                 {"prompt", {{"chunks", {{{"tokens", {1, 2, 3}}, {"type", "encoded_text"}}}}}},
                 {"sampling_params", {{"max_tokens", 3}}}});
  }
  // What has been done to a run, "train" or "step LR", in order.
  std::vector<std::string> kinds(const std::string& run) {
    std::vector<std::string> out;
    for (const std::string& what : done(run)) out.push_back(what == "step" ? what : "train");
    return out;
  }
  // Of a new sampler: the number of the sample for which there is no room; then the server is
  // killed.
  int64_t refused_for_room(std::string& id) {
    open({.max_queued = 3});
    go_on();
    id = sampler();
    std::atomic<bool> go = false;
    executor_->on_step = [&] {
      while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    int64_t seq = 0;
    while (sample(id, ++seq).status == 200) {
    }
    services_->close([this] { loop_->run(); });
    go = true;
    close();
    return seq;
  }
  // The start refuses, and says this.
  std::string refusal_of(const Opened& opened, bool accept_other_arithmetic = false) {
    try {
      open();
      go_on(opened, accept_other_arithmetic);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
};

TEST_F(HistoryTest, WhatWasToldIsThereAfterAKillAndTheClientGoesOn) {
  const std::string id = run();
  const Response first = train(id, 1), stepped = step(id, 2);
  const std::string told = result(first).body;
  result(stepped);
  restart();
  EXPECT_EQ(kinds(id), (std::vector<std::string>{"train", "step"}));
  EXPECT_EQ(train(id, 1).body, first.body);  // a retry of what was done
  EXPECT_EQ(result(first).body, told);
  result(train(id, 3));
  EXPECT_EQ(kinds(id), (std::vector<std::string>{"train", "step", "train"}));
  restart();
  EXPECT_EQ(kinds(id), (std::vector<std::string>{"train", "step", "train"}));
}

TEST_F(HistoryTest, WhatWasAcceptedAndNotDoneIsDoneAfterAKill) {
  const std::string id = run(), of_base = sampler();
  std::atomic<bool> go = false;
  executor_->on_batch = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const Response third = train(id, 3), second = step(id, 2), first = train(id, 1),
                 sampled = sample(of_base, 0);
  services_->close([this] { loop_->run(); });
  go = true;
  restart();
  EXPECT_EQ(result(first).status, 200);
  EXPECT_TRUE(parse(result(second)).contains("metrics"));
  EXPECT_EQ(result(third).status, 200);
  EXPECT_EQ(result(sampled).content_type, "application/x-protobuf");
  EXPECT_EQ(kinds(id), (std::vector<std::string>{"train", "step", "train"}));
}

TEST_F(HistoryTest, WhatFailedIsNotTriedAgainAndFailsItsWindowAsBefore) {
  const std::string id = run();
  const Response bad = train(id, 1, "fail");
  const std::string told = failure(bad).body;
  restart();
  EXPECT_EQ(executor_->num_batches, 0);
  EXPECT_EQ(failure(bad).body, told);
  failure(step(id, 2));
  EXPECT_TRUE(parse(result(step(id, 3))).contains("metrics"));
}

TEST_F(HistoryTest, WhatFailedForWantOfMemoryEndsAsItDidThoughThereIsMemoryNow) {
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
    EXPECT_EQ(kinds(id), (std::vector<std::string>{"train", "train", "train"}));
    EXPECT_EQ(train(id, 2).body, failed.body) << "a retry is the first";
  };
  expect_as_told();
  restart();
  expect_as_told();
}

TEST_F(HistoryTest, ASamplerThatIsMadeAgainAfterAKillIsTheFirst) {
  const std::string s = session();
  const auto make = [&](int64_t number) {
    return text(
        post("/api/v1/create_sampling_session",
             {{"session_id", s}, {"sampling_session_seq_id", number}, {"base_model", "null"}}),
        "sampling_session_id");
  };
  const std::string first = make(3), second = make(4);
  EXPECT_NE(first, second);
  const Response sampled = sample(first, 0);
  const std::string told = result(sampled).body;
  for (int i = 0; i < 2; ++i) {
    restart();
    EXPECT_EQ(make(3), first);
    EXPECT_EQ(make(4), second);
    EXPECT_EQ(services_->samplers.size(), 2U);
    EXPECT_EQ(sample(first, 0).body, sampled.body);
    EXPECT_EQ(result(sampled).body, told);
  }
}

TEST_F(HistoryTest, ARefusedNumberIsUsedUpAfterAKillToo) {
  const std::string id = run();
  EXPECT_EQ(post("/api/v1/optim_step", {{"model_id", id}, {"seq_id", 1}}).status, 422);
  restart();
  EXPECT_EQ(step(id, 1).status, 422);
  result(step(id, 2));
  EXPECT_EQ(step(id, 1).status, 422);
}

TEST_F(HistoryTest, ARequestForWhichThereWasNoRoomIsNotDoneByAReplay) {
  std::string id;
  const int64_t seq = refused_for_room(id);
  restart();
  EXPECT_EQ(poll(id + ":" + std::to_string(seq)).status, 404);
  EXPECT_TRUE(loop_->run_until([&] { return services_->promises.num_open() == 0; }));
  EXPECT_EQ(result(sample(id, seq)).status, 200);
}

// As a kill between the answer "later" and its record would leave the journal.
TEST_F(HistoryTest, ARequestForWhichThereWasNoRoomIsDoneWhereThatWasNotWrittenDown) {
  std::string id;
  const int64_t seq = refused_for_room(id);
  const store::Segment segment = store::segments_in(dir_ / "journal").at(0);
  uintmax_t kept = 0;
  bool is_dropped = false;
  store::read_segment(segment, true, [&](const store::Record& record) {
    is_dropped |= record.kind == Dropped::kKind;
    if (!is_dropped) kept += store::kHeaderBytes + record.payload.size();
  });
  ASSERT_TRUE(is_dropped);
  std::filesystem::resize_file(segment.path, kept);
  open({.max_queued = 3});
  go_on();
  EXPECT_EQ(poll(id + ":" + std::to_string(seq)).status, 200);
  EXPECT_EQ(sample(id, seq).status, 200) << "its client comes again";
  loop_->pass(std::chrono::seconds(1));
  EXPECT_TRUE(loop_->run_until([&] { return services_->promises.num_open() == 0; }));
}

TEST_F(HistoryTest, AResultThatWasReadIsKeptTenMinutesOfTheServersTime) {
  const std::string id = run();
  const Response read = train(id, 1), unread = train(id, 2);
  result(read);
  loop_->run_until([&] { return services_->promises.num_open() == 0; });
  restart();
  EXPECT_EQ(poll(id + ":1").status, 200);
  loop_->pass(std::chrono::seconds(601));
  EXPECT_EQ(poll(id + ":1").status, 404);
  EXPECT_EQ(poll(id + ":2").status, 200);
}

TEST_F(HistoryTest, AClockThatWasAheadForAMomentTakesNoResultThatWasRead) {
  constexpr int64_t kDay = 86'400'000;
  const std::string id = run();
  bool is_written = false;
  services_->history.append(Command{.method = "POST",
                                    .path = "/api/v1/create_session",
                                    .content_type = "application/json",
                                    .owner = services_->runs.find(id)->owner,
                                    .body = "{}",
                                    .chance = new_id(),
                                    .time_ms = milliseconds_since_1970() + kDay},
                            [&](uint64_t, const std::exception_ptr&) { is_written = true; });
  EXPECT_TRUE(loop_->run_until([&] { return is_written; }));
  result(train(id, 1));
  restart();
  EXPECT_EQ(poll(id + ":1").status, 200);
}

TEST_F(HistoryTest, TwoSavesOfANameThatAreUnderWayHaveTheirOwnFolders) {
  const std::string id = run();
  const auto save = [&](int64_t seq) {
    return post("/api/v1/save_weights",
                {{"model_id", id}, {"seq_id", seq}, {"path", "a"}, {"overwrite", true}});
  };
  const Response second = save(2), first = save(1);
  result(first), result(second);
  for (const char* folder : {"a", "a@1"})
    EXPECT_TRUE(std::filesystem::exists(dir_ / "checkpoints" / id / "weights" / folder)) << folder;
}

// It is done again with the step, and this time succeeds: what was told stays.
TEST_F(HistoryTest, ASaveThatFailedBehindALaterStepDoesNotStopTheStart) {
  std::atomic<bool> go = false;
  executor_->on_write = [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    fail(Code::kInternal, "null: the disk is full");
  };
  const std::string id = run();
  result(train(id, 1));
  const Response saved =
      post("/api/v1/save_weights", {{"model_id", id}, {"seq_id", 2}, {"path", "a"}});
  EXPECT_TRUE(parse(result(step(id, 3))).contains("metrics")) << "it does not wait for the disk";
  go = true;
  const std::string told = failure(saved).body;
  EXPECT_NE(told.find("the disk is full"), told.npos);
  restart();
  EXPECT_EQ(failure(saved).body, told);
  EXPECT_EQ(kinds(id), (std::vector<std::string>{"train", "step"}));
}

TEST_F(HistoryTest, IdsAreTheSameAndASampleWithoutASeedKeepsTheOneItGot) {
  const std::string of_base = sampler();
  const Response sampled = sample(of_base, 0);
  const std::string told = result(sampled).body;
  restart();
  EXPECT_EQ(result(sampled).body, told);
  EXPECT_EQ(sample(of_base, 0).body, sampled.body);
  EXPECT_EQ(result(sample(of_base, 1)).status, 200);
}

TEST_F(HistoryTest, AStartThatWouldChangeWhatClientsWereToldIsRefusedByName) {
  const Opened here{.arithmetic = "{\"torch\":1}", .model = "{\"a\":1}", .weights = "1"};
  open();
  std::filesystem::remove_all(dir_.path());
  go_on(here);
  const std::string id = run();
  result(train(id, 1));
  EXPECT_NE(refusal_of({.arithmetic = here.arithmetic, .model = "b"}).find("is of the model"),
            std::string::npos);
  const Opened other{.arithmetic = "{\"torch\":2}", .model = here.model, .weights = "1"};
  EXPECT_NE(refusal_of(other).find("{\"torch\":2}"), std::string::npos);
  EXPECT_EQ(refusal_of(other, true), "");
  EXPECT_EQ(kinds(id), std::vector<std::string>{"train"});
  Opened moved = other;
  moved.path = "/copy";
  EXPECT_EQ(refusal_of(moved, true), "");
  moved.weights = "2";
  EXPECT_NE(refusal_of(moved, true).find("in /copy has other weights"), std::string::npos);
  // It was computed with two kinds: what is done again is not compared.
  open();
  executor_->on_batch = [] { fail(Code::kInvalid, "null: not this time"); };
  go_on(other);
}

TEST_F(HistoryTest, ARecordOrAStateOfAnotherFormatIsRefusedWithBothFormats) {
  const std::filesystem::path journal = dir_ / "journal";
  close();
  const auto refused = [&](const std::string& what, const char* ours) {
    EXPECT_EQ(refusal_of({}), "server: " + what + ", this program reads format " + ours +
                                  ": serve it by the version that wrote it, or name another "
                                  "--state");
  };
  uint64_t next = 0;
  {
    store::Journal theirs(journal, {});
    theirs.open([](const store::Record&) {});
    next = theirs.report().next;
    theirs.append(Dropped::kKind, 1, "", [](uint64_t, const auto&) {});
  }
  refused("record " + std::to_string(next) + " of the journal in " + journal.string() +
              " is of format 1",
          "2");
  const store::Header header =
      store::header_of({.sequence = next, .kind = State::kKind, .version = 2, .payload = {}});
  write_file_atomically(state_file(journal), std::string_view(header.data(), header.size()));
  refused(state_file(journal).string() + " is of format 2", "3");
}

TEST_F(HistoryTest, AnOperationThatEndsOtherwiseWhenItIsDoneAgainStopsTheStart) {
  const std::string id = run();
  result(train(id, 1));
  open();
  executor_->on_batch = [] { fail(Code::kInvalid, "null: not this time"); };
  std::string said;
  try {
    go_on();
  } catch (const Error& e) {
    said = e.what();
  }
  EXPECT_NE(said.find("'" + id + ":1' ended otherwise"), std::string::npos) << said;
}

TEST_F(HistoryTest, WhatASnapshotHoldsIsNotDoneAgain) {
  options_.snapshots.every = std::chrono::milliseconds(0);
  restart();
  const std::string id = run();
  result(train(id, 1));
  result(step(id, 2));
  EXPECT_TRUE(loop_->run_until([&] { return services_->snapshots.saving(id) < 0; }));
  const Response published =
      post("/api/v1/save_weights_for_sampler", {{"model_id", id}, {"seq_id", 3}});
  result(published);
  result(train(id, 4));
  restart();
  EXPECT_EQ(executor_->num_batches, 1);
  EXPECT_EQ(kinds(id), (std::vector<std::string>{"train", "step", "train"}));
  result(step(id, 5));
  EXPECT_TRUE(loop_->run_until([&] { return services_->snapshots.saving(id) < 0; }));
  restart();
  EXPECT_EQ(executor_->num_batches, 0);
  EXPECT_EQ(kinds(id), (std::vector<std::string>{"train", "step", "train", "step"}));
  EXPECT_EQ(result(published).status, 200);
  const std::string folder = (dir_.path() / "snapshots" / id).string();
  EXPECT_FALSE(std::filesystem::exists(folder + "/2")) << "the older one goes";
  std::filesystem::remove_all(folder);
}

// Too short for a snapshot by the clock, each of which a start would train again otherwise.
TEST_F(HistoryTest, WhatARunHasDoneWhenItsSessionEndsIsNotDoneAgain) {
  const std::string id = run();
  result(train(id, 1));
  result(step(id, 2));
  EXPECT_FALSE(services_->snapshots.is_saving());
  post("/api/v1/sessions/" + id.substr(0, id.find(':')) + "/finish", JsonObject{});
  EXPECT_TRUE(loop_->run_until([&] { return services_->snapshots.last(id) == 2; }));
  restart();
  EXPECT_EQ(executor_->num_batches, 0);
  EXPECT_EQ(kinds(id), (std::vector<std::string>{"train", "step"}));
}

TEST_F(HistoryTest, WhatRunsHaveDoneWhenTheServerEndsIsNotDoneAgain) {
  const std::string first = run(), second = run(), untrained = run();
  result(train(first, 1));
  result(step(first, 2));
  result(train(second, 1));  // gradients that no step has taken
  bool is_saved = false;
  services_->save_runs([&] { is_saved = true; });
  EXPECT_FALSE(is_saved);
  EXPECT_TRUE(loop_->run_until([&] { return !services_->snapshots.is_saving(); }));
  loop_->pass(std::chrono::milliseconds(20));
  EXPECT_TRUE(is_saved);
  EXPECT_EQ(services_->snapshots.last(first), 2);
  EXPECT_EQ(services_->snapshots.last(second), 1);
  EXPECT_EQ(services_->snapshots.last(untrained), -1);
  restart();
  EXPECT_EQ(executor_->num_batches, 0);
  EXPECT_EQ(kinds(first), (std::vector<std::string>{"train", "step"}));
  EXPECT_EQ(kinds(second), (std::vector<std::string>{"train"}));
}

TEST_F(HistoryTest, TheEngineLetsVersionsGoThatASnapshotHolds) {
  options_.snapshots.every = std::chrono::milliseconds(0);
  restart();
  const std::string id = run();
  std::vector<std::string> samplers;
  for (int64_t seq = 1; seq <= 6; seq += 2) {
    const Response published =
        post("/api/v1/save_weights_for_sampler", {{"model_id", id}, {"seq_id", seq}});
    samplers.push_back(text(result(published), "sampling_session_id"));
    result(step(id, seq + 1));
    EXPECT_TRUE(loop_->run_until([&] { return services_->snapshots.saving(id) < 0; }));
  }
  const auto is_released = [&](size_t i) {
    return services_->samplers.at(samplers[i]).version == 0;
  };
  EXPECT_TRUE(loop_->run_until([&] { return is_released(1); }));
  EXPECT_TRUE(is_released(0));
  EXPECT_FALSE(is_released(2)) << "the newest stays";
  for (const std::string& s : samplers) EXPECT_EQ(result(sample(s, 0)).status, 200);
  restart();
  EXPECT_TRUE(is_released(2)) << "the engine has it no more";
  for (const std::string& s : samplers) EXPECT_EQ(result(sample(s, 1)).status, 200);
}

// Requests in any order, killed at any moment: a client that sends again what it was not told of
// gets what it would have got. With a snapshot at each step, and without.
TEST_F(HistoryTest, KillsAtAnyMomentChangeNothing) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    options_.snapshots.every = std::chrono::milliseconds(seed % 2 * 60000);
    const std::string id = run();
    std::vector<std::string> expected;
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
    EXPECT_TRUE(loop_->run_until([&] { return services_->promises.num_open() == 0; }));
    EXPECT_EQ(kinds(id), expected) << "seed " << seed;
  }
}

// What is ahead may be of a journal whose end was not copied.
TEST_F(HistoryTest, AStartRemovesWhatIsBehindTheSnapshotsOfTheJournalAndNothingThatIsAhead) {
  options_.snapshots.every = std::chrono::milliseconds(0);
  restart();
  const std::string id = run();
  result(train(id, 1));
  result(post("/api/v1/save_weights_for_sampler", {{"model_id", id}, {"seq_id", 2}}));
  result(step(id, 3));
  EXPECT_TRUE(loop_->run_until([&] { return services_->snapshots.saving(id) < 0; }));
  const auto folder = dir_.path() / "snapshots" / id;
  for (const char* left : {"2", "1.old", ".3.partial-0123456789ab", "99", "version-2"})
    std::filesystem::create_directories(folder / left / "x");
  std::filesystem::create_directories(dir_.path() / "snapshots/other/1");
  restart();
  std::error_code error;
  std::vector<std::string> names = names_in(folder, error);
  std::ranges::sort(names);
  EXPECT_EQ(names, (std::vector<std::string>{"3", "99", "version-1", "version-2"}));
  EXPECT_EQ(names_in(dir_.path() / "snapshots/other", error).size(), 1U);
}

TEST_F(HistoryTest, AStartWhoseDiskRefusesEndsByName) {
  std::signal(SIGXFSZ, SIG_IGN);
  const std::string id = run();
  {
    const LimitForTest full(RLIMIT_FSIZE, 1);
    const std::string refusal = refusal_of({});
    EXPECT_EQ(refusal.find("store: cannot write to " + dir_.path().string()), 0U) << refusal;
  }
  restart();
  EXPECT_EQ(step(id, 1).status, 200);
}

TEST(Reader, WhatWorkNeedsIsReadBeforeWhatIsPolledFor) {
  LoopForTest loop;
  std::promise<void> go;
  std::vector<uint64_t> read, told;
  Reader reader(loop, [&](uint64_t sequence) -> ReadBack {
    if (read.empty()) go.get_future().wait();
    read.push_back(sequence);
    return Ended{.request_id = std::to_string(sequence)};
  });
  const auto ask = [&](uint64_t sequence, ReadFor what) {
    reader.read(sequence, what, [&, sequence](const ReadBack& kept, const auto&) {
      EXPECT_EQ(std::get<Ended>(kept).request_id, std::to_string(sequence));
      told.push_back(sequence);
    });
  };
  ask(9, ReadFor::kWork);  // which the others wait behind, or are asked before
  for (const uint64_t sequence : {1, 2}) ask(sequence, ReadFor::kPoll);
  for (const uint64_t sequence : {3, 4}) ask(sequence, ReadFor::kWork);
  go.set_value();
  ASSERT_TRUE(loop.run_until([&] { return told.size() == 5; }));
  EXPECT_EQ(told, (std::vector<uint64_t>{9, 3, 4, 1, 2}));
  EXPECT_EQ(told, read);
}

}  // namespace
}  // namespace twinkle::server
