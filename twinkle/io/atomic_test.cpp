#include "twinkle/io/atomic.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include <atomic>
#include <chrono>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "twinkle/io/scratch_dir_for_test.h"

namespace {
std::vector<std::string>* synced = nullptr;  // paths, in the order of their syncs; null: not kept
}

// In place of the system's, for every caller in this process.
extern "C" int fsync(int fd) {
  if (synced) {
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    synced->push_back(std::filesystem::read_symlink(link).string());
  }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace twinkle {
namespace {

namespace fs = std::filesystem;

constexpr int kFiles = 4;

void save_version(const fs::path& target, int version) {
  AtomicDirectory dir(target);
  for (int i = 0; i < kFiles; ++i) {
    AtomicFile file(dir.staging() / std::to_string(i));
    for (int part = 0; part < 20; ++part) file.write(std::to_string(version) + "\n");
    file.commit();
  }
  dir.commit();
}

// The version that every file of the folder holds whole, or -1.
int version_of(const fs::path& target) {
  const std::string first = read_text(target / "0");
  const std::string line = first.substr(0, first.find('\n') + 1);
  std::string whole;
  for (int part = 0; part < 20; ++part) whole += line;
  if (line.empty() || first != whole) return -1;
  for (int i = 1; i < kFiles; ++i) {
    if (read_text(target / std::to_string(i)) != first) return -1;
  }
  return std::stoi(line);
}

int num_entries(const fs::path& dir) {
  return static_cast<int>(std::distance(fs::directory_iterator(dir), fs::directory_iterator()));
}

// Runs `action` in a child process that may write files of `limit` bytes at most; its exit code.
template <class Action>
int with_file_limit(rlim_t limit, Action&& action) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit bound{limit, limit};
    ::setrlimit(RLIMIT_FSIZE, &bound);
    ::_exit(action());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(AtomicFile, ReplacesTheTargetOnlyAtCommit) {
  const ScratchDir dir;
  write_text(dir / "x", "old");
  {
    AtomicFile file(dir / "x");
    file.write("new");
    EXPECT_EQ(read_text(dir / "x"), "old");
    file.commit();
    EXPECT_EQ(read_text(dir / "x"), "new");
    AtomicFile abandoned(dir / "x");
    abandoned.write("newer");
  }
  EXPECT_EQ(read_text(dir / "x"), "new");
  EXPECT_EQ(num_entries(dir.path()), 1);
}

TEST(AtomicFile, NamesATargetThatCannotBe) {
  const ScratchDir dir;
  EXPECT_EQ(error_of([&] { write_file_atomically(dir.path(), ""); }),
            "io: cannot write the file " + dir.path().string() + ": it is a folder");
  EXPECT_EQ(error_of([&] { write_file_atomically(dir / "no/x", ""); }),
            "io: cannot write " + (dir / "no/x").string() + ": No such file or directory");
}

TEST(AtomicFile, KeepsTheOldOneWhenTheFileMayNotGrow) {
  const ScratchDir dir;
  write_text(dir / "x", "old");
  const int code = with_file_limit(1000, [&] {
    std::string text;
    try {
      write_file_atomically(dir / "x", std::string(5000, 'n'));
    } catch (const Error& e) {
      if (e.code == Code::kInternal) text = e.what();  // not the caller's mistake
    }
    const std::string expected = "io: cannot write more than 1000 bytes of " +
                                 (dir / "x").string() +
                                 ": File too large; free space there or save elsewhere, what was "
                                 "saved before is untouched";
    return text == expected ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(read_text(dir / "x"), "old");
  EXPECT_EQ(num_entries(dir.path()), 1);
}

TEST(AtomicDirectory, ReplacesTheTargetAsAWhole) {
  const ScratchDir dir;
  const fs::path target = dir / "deep/run";
  save_version(target, 1);
  EXPECT_EQ(version_of(target), 1);
  write_text(target / "stale", "");
  save_version(target, 2);
  EXPECT_EQ(version_of(target), 2);
  EXPECT_FALSE(fs::exists(target / "stale"));
  EXPECT_EQ(num_entries(dir / "deep"), 1);
}

TEST(AtomicDirectory, TakesEveryTargetThatIsJudgedWritable) {
  const ScratchDir dir;
  const fs::path longest = dir / std::string(233, 'n');
  for (const fs::path& target :
       {dir / "new", dir / "a/b/c", longest, dir / "new/", dir.path(), fs::path("here")})
    check_writable(target, "t: directory");
  EXPECT_EQ(num_entries(dir.path()), 0) << "nothing is written";
  save_version(longest, 1);
  EXPECT_EQ(version_of(longest), 1);
}

TEST(AtomicDirectory, NamesWhatTheSystemWouldRefuseBeforeAnythingIsWritten) {
  const ScratchDir dir;
  write_text(dir / "file", "");
  fs::create_symlink(dir / "loop", dir / "loop");
  const auto refused = [&](const fs::path& target) {
    std::string text = invalid_of([&] { check_writable(target, "t: directory"); });
    const std::string begin = "t: directory " + target.string();
    EXPECT_TRUE(text.starts_with(begin)) << text;
    return text.substr(std::min(begin.size(), text.size()));
  };
  EXPECT_EQ(refused(dir / std::string(234, 'n')),
            " has a name of 234 bytes, it must have at most 233; shorten it");
  EXPECT_EQ(refused(dir / (std::string(300, 'n') + "/x")),
            " has a name of 300 bytes, it must have at most 255; shorten it");
  std::string deep = "/d";
  while (deep.size() < 4000) deep += "/d";
  EXPECT_EQ(refused(deep), " has a path of 4000 bytes, it must have at most 3973; shorten it");
  EXPECT_EQ(refused(dir / "file"), " is a file; name a directory");
  EXPECT_EQ(refused(dir / "file/x/y"),
            " is below the file " + (dir / "file").string() + "; name a directory");
  EXPECT_EQ(refused(dir / "loop/x"),
            " cannot be accessed: Too many levels of symbolic links; name another directory");
  EXPECT_EQ(num_entries(dir.path()), 2);
}

TEST(AtomicDirectory, NamesAFolderThatMayNotBeWrittenTo) {
  const ScratchDir dir;
  fs::permissions(dir.path(), fs::perms(0755));
  fs::create_directory(dir / "closed");
  fs::permissions(dir / "closed", fs::perms(0500));
  const uid_t me = ::geteuid();
  ASSERT_EQ(::seteuid(me == 0 ? 65534 : me), 0);  // root may write everywhere
  if (me != 0) fs::permissions(dir.path(), fs::perms(0555));
  const std::string closed = invalid_of([&] { check_writable(dir / "closed/x", "t: x"); });
  const std::string inside = invalid_of([&] { check_writable(dir / "a/b", "t: x"); });
  ASSERT_EQ(::seteuid(me), 0);
  fs::permissions(dir.path(), fs::perms(0755));
  fs::permissions(dir / "closed", fs::perms(0700));
  EXPECT_EQ(inside, "t: x " + (dir / "a/b").string() + " cannot be written: " +
                        dir.path().string() + ": Permission denied; name another directory");
  EXPECT_NE(closed.find("Permission denied; name another directory"), closed.npos) << closed;
}

TEST(AtomicDirectory, LeavesTheTargetAloneWithoutCommit) {
  const ScratchDir dir;
  save_version(dir / "run", 1);
  {
    AtomicDirectory abandoned(dir / "run");
    write_text(abandoned.staging() / "0", "half");
  }
  EXPECT_EQ(version_of(dir / "run"), 1);
  EXPECT_EQ(num_entries(dir.path()), 1);
}

TEST(AtomicDirectory, FollowsALinkAndIgnoresATrailingSlash) {
  const ScratchDir dir;
  save_version(dir / "run-1", 1);
  fs::create_directory_symlink("run-1", dir / "latest");
  save_version(dir / "latest/", 2);
  EXPECT_TRUE(fs::is_symlink(dir / "latest"));
  EXPECT_EQ(version_of(dir / "run-1"), 2);
}

TEST(AtomicDirectory, FollowsALinkThatLeadsToNothingYet) {
  const ScratchDir dir;
  fs::create_directory_symlink("run-2", dir / "run-1");
  fs::create_directory_symlink("run-1", dir / "latest");
  check_writable(dir / "latest", "t");
  save_version(dir / "latest/", 1);
  EXPECT_TRUE(fs::is_symlink(dir / "latest") && fs::is_symlink(dir / "run-1"));
  EXPECT_EQ(version_of(dir / "run-2"), 1);
}

TEST(AtomicDirectory, TheLastOfTwoThatMakeOneNewFolderWins) {
  const ScratchDir dir;
  std::optional<AtomicDirectory> first(dir / "run"), second(dir / "run");
  write_text(first->staging() / "0", "1");
  write_text(second->staging() / "0", "2");
  first->commit();
  second->commit();
  first.reset();
  second.reset();
  EXPECT_EQ(read_text(dir / "run/0"), "2");
  EXPECT_EQ(num_entries(dir.path()), 1);
}

// Threads stand for processes: the target comes into being between a look and a rename.
TEST(AtomicDirectory, ManyMaySaveToOneNewFolder) {
  for (int round = 0; round < 30; ++round) {
    const ScratchDir dir(memory_folder());
    std::vector<std::thread> savers;
    std::atomic<int> failures = 0;
    for (int i = 0; i < 4; ++i) {
      savers.emplace_back(
          [&] { failures += error_of([&] { save_version(dir / "run", 1); }) != "no error"; });
    }
    for (std::thread& saver : savers) saver.join();
    EXPECT_EQ(failures, 0);
    EXPECT_EQ(version_of(dir / "run"), 1);
  }
}

// Without the sync of each, a loss of power may take the folders, and the save with them.
TEST(AtomicDirectory, ParentsThatItMakesAreSyncedInTheirOwnParents) {
  const ScratchDir dir;
  const fs::path root = fs::canonical(dir.path());
  std::vector<std::string> paths;
  synced = &paths;
  save_version(dir / "a/b/run", 1);
  synced = nullptr;
  ASSERT_GT(paths.size(), 2U);
  EXPECT_EQ(paths[0], (root / "a").string()) << "which names a/b";
  EXPECT_EQ(paths[1] + "/", (root / "").string()) << "which names a";
  EXPECT_EQ(paths.back(), (root / "a/b").string()) << "which names the folder in the end";
}

TEST(AtomicDirectory, AParentThatMayBeWrittenToButNotListedWillDo) {
  const ScratchDir dir(memory_folder());  // where a sync of all takes no time
  const fs::path parent = dir / "parent";
  fs::create_directory(parent);
  constexpr uid_t kNobody = 65534;  // root may list everything
  const bool root = ::getuid() == 0;
  if (root) {
    ASSERT_EQ(::chown(parent.c_str(), kNobody, kNobody), 0);
    fs::permissions(dir.path(), fs::perms::all);
  }
  fs::permissions(parent, fs::perms::owner_write | fs::perms::owner_exec);
  const pid_t child = ::fork();
  if (child == 0) {
    if (root && ::setuid(kNobody) != 0) ::_exit(1);
    const std::string text = error_of([&] {
      check_writable(parent / "new/run", "t");
      for (int version = 1; version <= 2; ++version) {
        save_version(parent / "run", version);
        save_version(parent / "new/run", version);
      }
    });
    if (text != "no error") std::fputs((text + "\n").c_str(), stderr);
    ::_exit(text == "no error" ? 0 : 2);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  fs::permissions(parent, fs::perms::owner_all);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(version_of(parent / "run"), 2);
}

TEST(AtomicDirectory, AFifoAmongItsLeftoversIsNotWaitedFor) {
  const ScratchDir dir;
  ASSERT_EQ(::mkfifo((dir / ".run.partial-fifo").c_str(), 0600), 0);
  save_version(dir / "run", 1);
  EXPECT_EQ(version_of(dir / "run"), 1);
}

TEST(AtomicDirectory, RefusesATargetThatIsAFile) {
  const ScratchDir dir;
  write_text(dir / "x", "");
  const fs::path real = fs::canonical(dir / "x");
  EXPECT_EQ(error_of([&] { AtomicDirectory target(dir / "x"); }),
            "io: cannot save into the folder " + real.string() + ": it is a file");
  EXPECT_EQ(error_of([&] { AtomicDirectory target(dir / "x/run"); }),
            "io: cannot make the folder " + real.string() + ": Not a directory");
}

TEST(AtomicDirectory, RemovesWhatDeadSaversLeftButNotTheStagingOfLivingOnes) {
  const ScratchDir dir;
  fs::create_directories(dir / ".run.partial-dead/sub");
  write_text(dir / ".run.partial-alsodead", "");
  fs::create_directories(dir / ".runner.partial-other");
  AtomicDirectory living(dir / "run");
  save_version(dir / "run", 1);
  EXPECT_FALSE(fs::exists(dir / ".run.partial-dead"));
  EXPECT_FALSE(fs::exists(dir / ".run.partial-alsodead"));
  EXPECT_TRUE(fs::exists(dir / ".runner.partial-other"));
  EXPECT_TRUE(fs::exists(living.staging()));
}

TEST(AtomicDirectory, KnowsTheNamesThatAreThereOnlyWhileATargetIsWritten) {
  const ScratchDir dir;
  EXPECT_TRUE(is_partial_name(AtomicDirectory(dir / "run").staging().filename().native()));
  EXPECT_TRUE(is_partial_name(".run.old"));
  for (const char* name : {"run", "run.old", ".run", "run.partial-0123456789ab"})
    EXPECT_FALSE(is_partial_name(name)) << name;
}

TEST(AtomicDirectory, PutsBackTheOldOneAfterACrashBetweenTwoRenames) {
  const ScratchDir dir;
  save_version(dir / "run", 1);
  fs::rename(dir / "run", dir / ".run.old");
  {
    AtomicDirectory next(dir / "run");
  }
  EXPECT_EQ(version_of(dir / "run"), 1);
}

TEST(AtomicDirectory, ShowsTheOldOrTheNewWholeAfterAKillAtAnyMoment) {
  const ScratchDir dir(memory_folder());  // a kill leaves the same there
  const fs::path target = dir / "run";
  save_version(target, 0);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 10; ++i) save_version(target, 0);
  const std::chrono::duration<double, std::micro> ten = std::chrono::steady_clock::now() - start;
  // Kills fall from before the first save to some saves later, however slow the disk is today.
  std::mt19937 random(7);
  std::uniform_int_distribution<useconds_t> delay_us(0, static_cast<useconds_t>(ten.count() / 2));
  int last = 0, advances = 0;
  for (int round = 0; round < 60 || (advances < 5 && round < 2000); ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (int version = last + 1;; ++version) save_version(target, version);
    }
    ::usleep(delay_us(random));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const int version = version_of(target);
    ASSERT_GE(version, last) << "round " << round;
    advances += version > last;
    last = version;
  }
  EXPECT_GE(advances, 5);  // children did save
  save_version(target, last + 1);
  EXPECT_EQ(num_entries(dir.path()), 1);
}

TEST(AtomicDirectory, KeepsTheOldOneOnAFullDisk) {
  const ScratchDir dir;
  if (::mount("tmpfs", dir.path().c_str(), "tmpfs", 0, "size=256k") != 0) {
    GTEST_SKIP() << "a full disk is made by mounting a small one, which this user may not";
  }
  const fs::path target = dir / "run";
  save_version(target, 1);
  const std::string text = error_of([&] {
    AtomicDirectory next(target);
    AtomicFile file(next.staging() / "0");
    file.write(std::string(1 << 20, 'x'));
  });
  EXPECT_NE(text.find(": No space left on device; free space there or save elsewhere"), text.npos)
      << text;
  EXPECT_EQ(version_of(target), 1);
  EXPECT_EQ(num_entries(dir.path()), 1);
  ::umount(dir.path().c_str());
}

}  // namespace
}  // namespace twinkle
