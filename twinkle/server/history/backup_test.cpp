#include "twinkle/server/history/backup.h"

#include <fstream>

#include "twinkle/base/error.h"
#include "twinkle/server/service_for_test.h"

namespace twinkle::server {
namespace {

namespace fs = std::filesystem;

class BackupTest : public ServiceTest {
 protected:
  BackupTest() {
    options_.snapshots.every = std::chrono::milliseconds(0);
    open();
    go_on();
  }
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
  ScratchDir other_;
};

TEST_F(BackupTest, OfAServerThatRunsGoesOnElsewhereWithWhatItHad) {
  const std::string id = run();
  result(train(id, 1));
  result(step(id, 2));
  EXPECT_TRUE(loop_->run_until([&] { return !services_->snapshots.is_saving(id); }));
  const Response unread = train(id, 3);
  EXPECT_TRUE(loop_->run_until([&] { return services_->promises.num_open() == 0; }));
  const Copied copied = backup(dir_.path(), beside("backup"));
  EXPECT_EQ(copied.num_files, 3) << "the journal, the snapshot, the audit log";
  result(step(id, 4));  // which the backup has not

  EXPECT_EQ(restore(beside("backup"), beside("state")).num_files, copied.num_files);
  close();
  fs::remove_all(dir_.path());
  fs::rename(beside("state"), dir_.path());
  open();
  go_on();
  EXPECT_EQ(result(unread).status, 200);
  EXPECT_EQ(std::ssize(done(id)), 3);
  result(step(id, 4));
  EXPECT_EQ(std::ssize(done(id)), 4);
}

TEST_F(BackupTest, WhatIsThereIsNotReplacedAndWhatIsNoStateIsNamed) {
  backup(dir_.path(), beside("backup"));
  EXPECT_NE(refusal_of([&] { backup(dir_.path(), beside("backup")); }).find("is there"),
            std::string::npos);
  EXPECT_NE(refusal_of([&] { restore(beside("backup"), dir_.path()); }).find("is there"),
            std::string::npos);
  EXPECT_NE(refusal_of([&] { backup(beside("nothing"), beside("b")); }).find("no state"),
            std::string::npos);
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
  const std::string id = run();
  result(train(id, 1));
  result(step(id, 2));
  EXPECT_TRUE(loop_->run_until([&] { return !services_->snapshots.is_saving(id); }));
  close();
  backup(dir_.path(), beside("backup"));
  fs::remove_all(beside("backup") / "snapshots" / id / "2");
  EXPECT_NE(refusal_of([&] { restore(beside("backup"), beside("b")); }).find("lacks a snapshot"),
            std::string::npos);
}

}  // namespace
}  // namespace twinkle::server
