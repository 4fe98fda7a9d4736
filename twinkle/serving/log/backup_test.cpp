#include "twinkle/serving/log/backup.h"

#include <csignal>
#include <functional>
#include <tuple>

#include "twinkle/base/error.h"
#include "twinkle/io/atomic.h"
#include "twinkle/io/limit_for_test.h"
#include "twinkle/serving/core/core_for_test.h"
#include "twinkle/serving/log/fault_point_for_test.h"
#include "twinkle/store/journal.h"
#include "twinkle/store/keys/keys.h"

namespace twinkle::server::core {
namespace {

namespace fs = std::filesystem;

class BackupTest : public CoreTest {
 protected:
  ~BackupTest() override { set_fault_point({}); }
  // A state beside the one that is served.
  fs::path beside(const std::string& name) const { return other_.path() / name; }
  static std::string refusal_of(const std::function<void()>& run) {
    try {
      run();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
  // A run that has a snapshot behind 2.
  std::string stepped() {
    const std::string id = make_run();
    result(train(id, 1));
    result(step(id, 2));
    run(core_->save_runs());
    return id;
  }
  std::string refusal_of_start() {
    return refusal_of([&] { start(); });
  }
  ScratchDir other_;
};

TEST_F(BackupTest, OfAServerThatRunsGoesOnElsewhereWithWhatItHad) {
  const std::string id = stepped();
  const std::string unread = train(id, 3);
  EXPECT_TRUE(until([&] { return core_->domain().num_open() == 0; }));
  const Copied copied = backup(dir_.path(), beside("backup"));
  EXPECT_EQ(copied.num_files, 2) << "the journal, the snapshot";
  result(step(id, 4));  // the backup has none of it

  EXPECT_EQ(restore(beside("backup"), beside("state")).num_files, copied.num_files);
  kill();
  fs::remove_all(dir_.path());
  fs::rename(beside("state"), dir_.path());
  start();
  EXPECT_EQ(result(unread)->error, "");
  EXPECT_EQ(std::ssize(done(id)), 3);
  result(step(id, 4));
  EXPECT_EQ(std::ssize(done(id)), 4);
}

TEST_F(BackupTest, AVersionThatAnOperatorRemovedIsNamedAndTheRestIsCopied) {
  const std::string id = make_run();
  result(train(id, 1));
  result(publish(id, 2));
  result(publish(id, 3));
  result(step(id, 4));
  run(core_->save_runs());
  ASSERT_EQ(core_->domain().run(id)->snapshot.seq_id, 4);
  const fs::path versions = fs::path("snapshots") / id;
  ASSERT_TRUE(is_there(dir_ / versions / "version-1"));
  EXPECT_TRUE(backup(dir_.path(), beside("whole")).missing.empty());
  fs::remove_all(dir_ / versions / "version-1");
  EXPECT_EQ(backup(dir_.path(), beside("backup")).missing,
            std::vector{dir_ / versions / "version-1"});
  EXPECT_TRUE(is_there(beside("backup") / versions / "version-2"));
  EXPECT_EQ(restore(beside("backup"), beside("state")).missing,
            std::vector{beside("backup") / versions / "version-1"});
  // Without the run's own folder there is no start, which no other try helps.
  fs::rename(dir_ / versions / "4", beside("aside"));
  EXPECT_EQ(refusal_of([&] { backup(dir_.path(), beside("b")); })
                .find("server: the snapshot of the run '" + id + "' in " +
                      (dir_ / versions / "4").string() + " cannot be read: "),
            0U);
  fs::rename(beside("aside"), dir_ / versions / "4");
}

// The segments that are left to copy go when the first has been: no gap tells it, in the copy.
TEST_F(BackupTest, AJournalThatGivesWayToAStateMeanwhileLosesNothingThatWasAcknowledged) {
  options_.journal.segment_bytes = 1;
  start();
  const std::vector<std::string> sessions{session(), session(), session()};
  fs::copy(dir_ / "journal", beside("early"));
  options_.saving.journal_bytes = 1;
  start();
  ASSERT_TRUE(until([&] {
    session();
    loop_->pass(std::chrono::seconds(1));
    return core_->num_states() > 1;
  }));
  kill();
  const auto put_journal = [&](const char* name) {
    fs::remove_all(dir_ / "journal");
    fs::copy(beside(name), dir_ / "journal");
  };
  fs::copy(dir_ / "journal", beside("late"));
  for (const int at : {1, 2}) {
    put_journal("early");
    int n = 0;
    set_fault_point([&](std::string_view name) {
      if (name == "before a segment's copy" && ++n == at) put_journal("late");
    });
    backup(dir_.path(), beside("backup"));
    set_fault_point({});
    EXPECT_GE(n, at);
    fs::remove_all(dir_ / "journal");
    fs::copy(beside("backup") / "journal", dir_ / "journal");
    fs::remove_all(beside("backup"));
    start();
    for (const std::string& id : sessions) EXPECT_NE(core_->domain().session(id), nullptr) << at;
    kill();
  }
}

TEST_F(BackupTest, AJournalThatHasLostRecordsIsNeitherCopiedNorRestored) {
  session();
  kill();
  backup(dir_.path(), beside("before"));
  write_file_atomically(store::lost_file(dir_ / "journal"), "store: it has lost record 2");
  for (const auto& copied : {backup, restore}) {
    const std::string why = refusal_of([&] { copied(dir_.path(), beside("b")); });
    EXPECT_EQ(why, "store: it has lost record 2, or, to go on with what is left, remove " +
                       (dir_ / "journal" / "lost").string());
    EXPECT_FALSE(is_there(beside("b")));
  }
  restore(beside("before"), beside("b"));
}

TEST_F(BackupTest, WhatIsThereIsNotReplacedAndWhatIsNoStateIsNamed) {
  backup(dir_.path(), beside("backup"));
  EXPECT_NE(refusal_of([&] { backup(dir_.path(), beside("backup")); }).find("is there"),
            std::string::npos);
  EXPECT_NE(refusal_of([&] { restore(beside("backup"), dir_.path()); }).find("is there"),
            std::string::npos);
  const auto refusal = [&](const std::string& state) {
    return refusal_of([&] { backup(beside(state), beside("b")); });
  };
  EXPECT_EQ(refusal("nothing"), "server: there is no folder " + beside("nothing").string() +
                                    "; name the server's with --state");
  fs::create_directory(beside("empty"));
  EXPECT_EQ(refusal("empty"),
            "server: " + beside("empty").string() + " is no state of a server: it has no journal");
  fs::create_directories(beside("lost") / "snapshots/run");
  store::KeyFile(beside("lost")).create({.tenant = "a", .scopes = {"train"}});
  EXPECT_EQ(refusal("lost"), "server: " + beside("lost").string() +
                                 " has runs, but no journal; put it back, or restore a backup "
                                 "(twinkle restore)");
  const store::KeyFile keys(beside("keyed"));
  keys.create({.tenant = "a", .scopes = {"train"}});
  EXPECT_EQ(refusal("keyed"), "server: no server has run on " + beside("keyed").string() +
                                  " yet, so that it has keys alone: copy " + keys.path().string() +
                                  " itself");
  EXPECT_NE(refusal_of([&] { restore(beside("nothing"), beside("b")); }).find("no backup"),
            std::string::npos);
}

TEST_F(BackupTest, ACopyWithinWhatItCopiesIsRefusedByItsPath) {
  const fs::path within = dir_.path() / "backups" / "monday";
  const std::string refusal = refusal_of([&] { backup(dir_.path() / "." / "", within); });
  EXPECT_NE(refusal.find(within.string() + " is in "), std::string::npos) << refusal;
  EXPECT_FALSE(fs::exists(within.parent_path()));
  backup(dir_.path(), beside("backup"));
  const fs::path state = beside("backup") / "state";
  EXPECT_NE(refusal_of([&] { restore(beside("backup"), state); }).find(state.string() + " is in "),
            std::string::npos);
}

TEST_F(BackupTest, ABackupWithoutASnapshotThatItsJournalNamesIsRefused) {
  const std::string id = stepped();
  kill();
  backup(dir_.path(), beside("backup"));
  fs::remove_all(beside("backup") / "snapshots" / id / "2");
  EXPECT_NE(refusal_of([&] { restore(beside("backup"), beside("b")); }).find("lacks a snapshot"),
            std::string::npos);
}

TEST_F(BackupTest, AStartWithoutTheJournalOfRunsThatAreThereIsRefusedAndRemovesNothing) {
  const std::string id = stepped();
  result(save_as(id, 3, "a"));
  kill();
  fs::rename(dir_ / "journal", beside("journal"));
  const auto expect_refused = [&](const char* kept) {
    const std::string folder = (dir_ / kept).string();
    EXPECT_EQ(refusal_of_start(),
              "server: " + folder + " has runs, but the journal in " + (dir_ / "journal").string() +
                  " holds nothing: put the journal back, restore a backup (twinkle restore), or "
                  "move " +
                  folder + " away to start anew");
  };
  expect_refused("snapshots");
  fs::create_directory(dir_ / "journal");
  write_text(dir_ / "journal/00000000000000000001.journal", "");
  expect_refused("snapshots");
  EXPECT_TRUE(fs::exists(dir_ / "snapshots" / id / "2/null"));
  EXPECT_NE(refusal_of([&] { restore(dir_.path(), beside("b")); }).find("holds nothing"),
            std::string::npos);
  fs::rename(dir_ / "snapshots", beside("snapshots"));
  expect_refused("checkpoints");
  fs::remove_all(dir_ / "journal");
  fs::rename(beside("journal"), dir_ / "journal");
  fs::rename(beside("snapshots"), dir_ / "snapshots");
  start();
  EXPECT_EQ(std::ssize(done(id)), 2);
}

TEST_F(BackupTest, AStartWithoutASnapshotIsRefusedByItsFolderAndWhyItCannotBeRead) {
  const std::string id = stepped();
  kill();
  const fs::path snapshot = dir_ / "snapshots" / id / "2";
  const auto expect_refused = [&](const std::string& why) {
    EXPECT_EQ(refusal_of_start(),
              "server: the snapshot of the run '" + id + "' in " + snapshot.string() +
                  " cannot be read: " + why +
                  "; put the folder back as it was, or restore a backup (twinkle restore)");
  };
  fs::remove_all(snapshot);
  fs::create_directory(snapshot);
  expect_refused("it is empty");
  fs::remove(snapshot);
  expect_refused("No such file or directory");
}

// The server goes on: the others need not wait for it.
TEST_F(BackupTest, ADamagedSnapshotLosesItsRunByName) {
  const std::string id = stepped();
  const fs::path snapshot = dir_ / "snapshots" / id / "2";
  write_text(snapshot / "damaged", "");
  start();
  const Result refused = result(train(id, 3));
  EXPECT_EQ(refused->error.find("server: the snapshot of the run '" + id + "' in snapshots/" + id +
                                "/2 cannot be read: "),
            0U)
      << refused->error;
  EXPECT_FALSE(refused->is_users);
}

// A server deletes what its clients have deleted while a copy is made, which is no reason to tell.
TEST_F(BackupTest, CheckpointsAreCopiedAndOneThatIsDeletedMeanwhileIsNotMissed) {
  const std::string id = make_run();
  result(train(id, 1));
  result(save_as(id, 2, "a")), result(save_as(id, 3, "a.old"));
  EXPECT_TRUE(backup(dir_.path(), beside("both")).missing.empty());
  for (const char* name : {"a", "a.old"})
    EXPECT_TRUE(is_there(beside("both") / "checkpoints" / id / "weights" / name)) << name;
  int n = 0;
  set_fault_point([&](std::string_view name) {
    if (name != "before a segment's copy" || ++n != 2) return;
    run(core_->commit(DeleteCheckpoint{id + "/weights/a"}));
    EXPECT_TRUE(until([&] { return !is_there(dir_ / "checkpoints" / id / "weights/a"); }));
  });
  // With a second segment: the record of the deletion comes behind what is copied by then.
  options_.journal.segment_bytes = 1;
  start();
  session();
  EXPECT_TRUE(backup(dir_.path(), beside("one")).missing.empty());
  EXPECT_GE(n, 2);
  set_fault_point({});
  EXPECT_FALSE(is_there(beside("one") / "checkpoints" / id / "weights/a"));
  EXPECT_TRUE(is_there(beside("one") / "checkpoints" / id / "weights/a.old")) << "another's name";
  EXPECT_TRUE(is_there(dir_ / "checkpoints" / id / "weights/a.old"));
  fs::remove_all(dir_ / "checkpoints" / id / "weights/a.old");  // by hand
  EXPECT_EQ(backup(dir_.path(), beside("none")).missing,
            std::vector{dir_ / "checkpoints" / id / "weights/a.old"});
}

TEST_F(BackupTest, ACopyThatTheDiskRefusesTellsItsReasonAndThePlaceThatNeedsRoom) {
  stepped();
  backup(dir_.path(), beside("backup"));
  std::signal(SIGXFSZ, SIG_IGN);
  const LimitForTest full(RLIMIT_FSIZE, 1);
  const auto expect_refused = [&](const fs::path& to, const std::function<void()>& run) {
    const std::string why = refusal_of(run);
    const std::string place = (to.parent_path() / ("." + to.filename().string())).string();
    EXPECT_TRUE(why.starts_with("io: cannot write more than ")) << why;
    EXPECT_NE(why.find(" bytes of " + place + ".partial-"), std::string::npos) << why;
    EXPECT_NE(why.find(": File too large; free space there"), std::string::npos) << why;
    EXPECT_FALSE(fs::exists(to));
  };
  expect_refused(beside("b"), [&] { backup(dir_.path(), beside("b")); });
  expect_refused(beside("s"), [&] { restore(beside("backup"), beside("s")); });
}

TEST_F(BackupTest, ACopyIsReadByWhoMayReadTheFileAlone) {
  write_text(dir_ / "keys.json", "{}");
  fs::permissions(dir_ / "keys.json", fs::perms::owner_read);
  backup(dir_.path(), beside("backup"));
  EXPECT_EQ(fs::status(beside("backup") / "keys.json").permissions(), fs::perms::owner_read);
}

}  // namespace
}  // namespace twinkle::server::core
