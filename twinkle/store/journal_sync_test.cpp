// When the disk is asked for a sync, and disks that refuse.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>

#include "twinkle/base/error_for_test.h"
#include "twinkle/io/limit_for_test.h"
#include "twinkle/io/scratch_dir_for_test.h"
#include "twinkle/store/journal.h"
#include "twinkle/store/journal_for_test.h"

namespace {
std::atomic<int> num_syncs = 0;
std::atomic<bool> sync_fails = false;
std::atomic<bool> sync_waits = false;  // until it is false again
}  // namespace

namespace {

// The bytes of one file on a disk, where the system takes pages whose sync has failed for written.
struct Disk {
  std::mutex mutex;
  bool counts = false;
  std::string written, has;  // '1' for each byte that was written since its last sync, or is there

  void write(size_t offset, size_t size) {
    const std::lock_guard lock(mutex);
    if (!counts) return;
    written.resize(std::max(written.size(), offset + size), '0');
    written.replace(offset, size, size, '1');
  }
  void sync(bool is_done) {
    const std::lock_guard lock(mutex);
    has.resize(std::max(has.size(), written.size()), '0');
    for (size_t i = 0; i < written.size(); ++i)
      if (is_done && written[i] == '1') has[i] = '1';
    written.clear();
  }
} disk;

}  // namespace

// In place of the system's, for every caller in this process.
extern "C" int fdatasync(int fd) {
  ++num_syncs;
  sync_waits.wait(true);
  disk.sync(!sync_fails);
  if (!sync_fails) return static_cast<int>(::syscall(SYS_fdatasync, fd));
  errno = EIO;
  return -1;
}
extern "C" ssize_t pwritev(int fd, const iovec* parts, int count, off_t offset) {
  const ssize_t size = ::syscall(SYS_pwritev, fd, parts, count, offset, 0);
  if (size > 0) disk.write(static_cast<size_t>(offset), static_cast<size_t>(size));
  return size;
}
namespace twinkle::store {
namespace {

namespace fs = std::filesystem;

// Syncs fail from here on.
void fail_a_sync(Journal& journal, uint64_t sequence) {
  sync_fails = true;
  expect_error("store: cannot sync", [&] { journal.wait_synced(sequence); });
}

TEST(Journal, SyncsWhatAProcessOutlivesInGroups) {
  const ScratchDir dir(memory_folder());
  Calls calls;
  Opened opened(dir / "j");
  const int before = num_syncs;
  for (int i = 0; i < 200; ++i) opened.journal->append(1, 1, "a", calls.one());
  calls.wait(200);
  EXPECT_LT(num_syncs - before, 100);
  while (num_syncs == before) ::usleep(1000);  // it comes, though nobody waits for it
}

TEST(Journal, AcknowledgesAfterTheDisksSyncWhatCameWhileItWasBusyAsOneGroup) {
  const ScratchDir dir(memory_folder());
  Calls calls;
  Opened opened(dir / "j", {.durability = Durability::kDisk, .sync_seconds = 60});
  const int before = num_syncs;
  sync_waits = true;
  opened.journal->append(1, 1, "a", calls.one());
  while (num_syncs == before) ::usleep(1000);  // long before the 60 seconds
  for (int i = 0; i < 199; ++i) opened.journal->append(1, 1, "a", calls.one());
  EXPECT_TRUE(calls.wait(0).empty()) << "nothing is on the disk";
  sync_waits = false;
  sync_waits.notify_all();
  EXPECT_EQ(calls.wait(200).size(), 200);
  EXPECT_EQ(num_syncs - before, 2);
}

TEST(Journal, WhatWasAcknowledgedIsWrittenAgainWhereItsSyncFailed) {
  const ScratchDir dir(memory_folder());
  Calls calls;
  Opened opened(dir / "j", {.sync_seconds = 60, .retry_seconds = 0.02});
  disk.counts = true;
  for (int i = 0; i < 3; ++i)
    opened.journal->append(1, 1, std::string(1'500'000, 'x'), calls.one());
  calls.wait(3);
  fail_a_sync(*opened.journal, 3);
  sync_fails = false;
  wait_until_healthy(*opened.journal);
  disk.counts = false;
  const size_t size = fs::file_size(segment_path(dir / "j", 1));
  EXPECT_EQ(calls.wait(3).back(), "3");
  EXPECT_EQ(size, 3 * (kHeaderBytes + 1'500'000));
  ASSERT_GE(disk.has.size(), size);
  EXPECT_EQ(disk.has.substr(0, size).find('0'), std::string::npos) << "a byte is in no sync";
  disk.has.clear();
  EXPECT_EQ(Opened(dir / "k").kept.size(), 0U);
}

// Some file systems drop the pages whose sync has failed.
TEST(Journal, GoesOnRefusingWhereTheSystemHasDroppedWhatWasAcknowledged) {
  const ScratchDir dir(memory_folder());
  Calls calls;
  Opened opened(dir / "j", {.sync_seconds = 60, .retry_seconds = 0.02});
  opened.journal->append(1, 1, "a", calls.one());
  opened.journal->wait_synced(1);
  for (int i = 0; i < 3; ++i) opened.journal->append(1, 1, "b", calls.one());
  calls.wait(4);
  fail_a_sync(*opened.journal, 4);
  const FileHandle file(::open(segment_path(dir / "j", 1).c_str(), O_WRONLY | O_CLOEXEC));
  const std::string zeros(3 * (kHeaderBytes + 1), '\0');
  const auto is_told = [&] {
    return opened.journal->trouble().find("has lost record 2,") != std::string::npos;
  };
  for (const int first = num_syncs; !is_told() && num_syncs - first < 50; ::usleep(1000)) {
    const auto size = static_cast<ssize_t>(zeros.size());
    ASSERT_EQ(::pwrite(file.get(), zeros.data(), zeros.size(), kHeaderBytes + 1), size);
  }
  sync_fails = false;
  std::string rest;  // there again, as a network's file system may have it
  for (uint64_t n = 2; n <= 4; ++n) {
    const Header header = header_of({n, 1, 1, "b"});
    rest.append(header.data(), header.size()).append("b");
  }
  ASSERT_EQ(::pwrite(file.get(), rest.data(), rest.size(), kHeaderBytes + 1), std::ssize(rest));
  ::usleep(100'000);  // it would try again
  EXPECT_TRUE(is_told()) << opened.journal->trouble();
  ASSERT_EQ(::pwrite(file.get(), zeros.data(), zeros.size(), kHeaderBytes + 1), std::ssize(zeros));
  EXPECT_FALSE(opened.journal->healthy());
  expect_error("has lost record 2, which was acknowledged",
               [&] { opened.journal->append(1, 1, "b", calls.one()); });
  // Zeros at the end are else a torn tail.
  opened.journal.reset();
  const std::string lost = (dir / "j" / "lost").string();
  expect_error("has lost record 2, which was acknowledged", [&] { Opened(dir / "j"); });
  expect_error("or, to go on with what is left, remove " + lost, [&] { Opened(dir / "j"); });
  fs::remove(lost);
  EXPECT_EQ(Opened(dir / "j").kept, (std::vector<Kept>{{1, 1, 1, "a"}}));
}

TEST(Journal, WaitsForTheSyncOfARecordAndForNoTimer) {
  const ScratchDir dir(memory_folder());
  Calls calls;
  Opened opened(dir / "j", {.sync_seconds = 60});
  opened.journal->append(1, 1, "a", calls.one());
  calls.wait(1);
  const int before = num_syncs;
  const auto begun = std::chrono::steady_clock::now();
  opened.journal->wait_synced(1);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(30));
  EXPECT_EQ(num_syncs - before, 1);
}

class Refusing : public ::testing::TestWithParam<Durability> {};
INSTANTIATE_TEST_SUITE_P(Journal, Refusing,
                         ::testing::Values(Durability::kProcess, Durability::kDisk));

TEST_P(Refusing, AFullDiskLosesNothingAndHeals) {
  ::signal(SIGXFSZ, SIG_IGN);
  const ScratchDir dir(memory_folder());
  Calls calls;
  {
    Opened opened(dir / "j", {.durability = GetParam(), .retry_seconds = 0.02});
    opened.journal->append(1, 1, "first", calls.one());
    calls.wait(1);
    {
      const LimitForTest full(RLIMIT_FSIZE, 1000);
      opened.journal->append(1, 1, std::string(2000, 'x'), calls.one());
      const std::string text = calls.wait(2)[1];
      EXPECT_NE(text.find("store: cannot write to "), text.npos) << text;
      EXPECT_NE(text.find("File too large; free space"), text.npos) << text;
      EXPECT_FALSE(opened.journal->healthy());
      EXPECT_EQ(opened.journal->trouble(), text);
      EXPECT_EQ(fs::file_size(segment_path(dir / "j", 1)), kHeaderBytes + 5);
      ::usleep(50000);  // some attempts
      expect_error(text, [&] { opened.journal->append(1, 1, "y", calls.one()); });
    }
    wait_until_healthy(*opened.journal);
    opened.journal->append(1, 1, "second", calls.one());
    EXPECT_EQ(calls.wait(3)[2], "2");
  }
  EXPECT_EQ(Opened(dir / "j").kept, (std::vector<Kept>{{1, 1, 1, "first"}, {2, 1, 1, "second"}}));
}

TEST_P(Refusing, ARecordForWhichThereIsNoRoomHoldsUpNoSmallerOne) {
  ::signal(SIGXFSZ, SIG_IGN);
  const ScratchDir dir(memory_folder());
  Calls calls;
  Opened opened(dir / "j", {.durability = GetParam(), .retry_seconds = 3600});
  const LimitForTest nearly_full(RLIMIT_FSIZE, 100'000);
  opened.journal->append(1, 1, std::string(100'000, 'x'), calls.one());
  EXPECT_NE(calls.wait(1)[0].find("store: cannot write to "), std::string::npos);
  wait_until_healthy(*opened.journal);
  opened.journal->append(1, 1, "small", calls.one());
  EXPECT_EQ(calls.wait(2)[1], "1");
}

TEST_P(Refusing, WhatIsKeptIsWrittenBeforeAllThatIsAppendedBehindIt) {
  ::signal(SIGXFSZ, SIG_IGN);
  const ScratchDir dir(memory_folder());
  Calls calls;
  {
    Opened opened(dir / "j", {.durability = GetParam(), .retry_seconds = 0.02});
    Journal& journal = *opened.journal;
    {
      const LimitForTest full(RLIMIT_FSIZE, 1);
      journal.append(1, 1, "a", calls.one(), Refusal::kKept);
      while (journal.healthy()) ::usleep(1000);
      journal.append(1, 1, "b", calls.one(), Refusal::kKept);
      ::usleep(50000);  // some attempts
      EXPECT_THROW(journal.append(1, 1, "told", calls.one()), Error);
      journal.append(1, 1, "c", calls.one(), Refusal::kKept);
    }
    wait_until_healthy(journal);
    journal.append(1, 1, "d", calls.one());
    EXPECT_EQ(calls.wait(4), (std::vector<std::string>{"1", "2", "3", "4"}));
  }
  EXPECT_EQ(Opened(dir / "j").kept,
            (std::vector<Kept>{{1, 1, 1, "a"}, {2, 1, 1, "b"}, {3, 1, 1, "c"}, {4, 1, 1, "d"}}));
}

TEST_P(Refusing, WhatIsStillKeptWhenItIsClosedIsTold) {
  ::signal(SIGXFSZ, SIG_IGN);
  const ScratchDir dir(memory_folder());
  Calls calls;
  {
    Opened opened(dir / "j", {.durability = GetParam()});
    const LimitForTest full(RLIMIT_FSIZE, 1);
    opened.journal->append(1, 1, "a", calls.one(), Refusal::kKept);
    while (opened.journal->healthy()) ::usleep(1000);
    opened.journal.reset();
    EXPECT_EQ(calls.wait(1)[0], "store: the journal was closed");
  }
  EXPECT_TRUE(Opened(dir / "j").kept.empty());
}

TEST_P(Refusing, ASegmentThatCannotBeMadeIsTriedAgain) {
  const ScratchDir dir(memory_folder());
  Calls calls;
  {
    Opened opened(dir / "j",
                  {.durability = GetParam(), .segment_bytes = 30, .retry_seconds = 0.02});
    opened.journal->append(1, 1, "first", calls.one());
    calls.wait(1);
    fs::create_directory(segment_path(dir / "j", 2));
    opened.journal->append(1, 1, "lost", calls.one());
    EXPECT_NE(calls.wait(2)[1].find("store: cannot make a segment after"), std::string::npos);
    ::usleep(50000);
    EXPECT_FALSE(opened.journal->healthy());
    fs::remove(segment_path(dir / "j", 2));
    wait_until_healthy(*opened.journal);
    opened.journal->append(1, 1, "second", calls.one());
    EXPECT_EQ(calls.wait(3)[2], "2");
  }
  EXPECT_EQ(Opened(dir / "j").kept, (std::vector<Kept>{{1, 1, 1, "first"}, {2, 1, 1, "second"}}));
}

TEST_P(Refusing, WhatCouldNotBeSyncedIsRefusedOrWasAcknowledgedBefore) {
  const ScratchDir dir(memory_folder());
  const bool disk = GetParam() == Durability::kDisk;
  Calls calls;
  {
    Opened opened(dir / "j", {.durability = GetParam(), .retry_seconds = 0.02});
    sync_fails = true;
    opened.journal->append(1, 1, "first", calls.one());
    const std::string text = calls.wait(1)[0];
    while (opened.journal->healthy()) ::usleep(1000);
    EXPECT_EQ(text, disk ? opened.journal->trouble() : "1");
    sync_fails = false;
    wait_until_healthy(*opened.journal);
    opened.journal->append(1, 1, "second", calls.one());
    EXPECT_EQ(calls.wait(2)[1], disk ? "1" : "2");
    sync_fails = true;
    opened.journal->append(1, 1, "kept", calls.one(), Refusal::kKept);
    while (opened.journal->healthy()) ::usleep(1000);
    sync_fails = false;
    wait_until_healthy(*opened.journal);
    opened.journal->append(1, 1, "third", calls.one());
    EXPECT_EQ(calls.wait(4)[2], disk ? "2" : "3") << "written again where it was cut off";
  }
  EXPECT_EQ(Opened(dir / "j").kept.size(), disk ? 3U : 4U);
}

}  // namespace
}  // namespace twinkle::store
