#include "twinkle/base/memory/memory_limit.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace twinkle {
namespace {

namespace fs = std::filesystem;

class MemoryLimit : public testing::Test {
 protected:
  MemoryLimit() {
    std::string pattern = (fs::temp_directory_path() / "twinkle-test-XXXXXX").string();
    dir_ = ::mkdtemp(pattern.data());
  }
  ~MemoryLimit() override { fs::remove_all(dir_); }

  void write(const std::string& name, const std::string& text) {
    fs::create_directories((dir_ / name).parent_path());
    std::ofstream(dir_ / name) << text << '\n';
  }
  // `root`: of what is mounted.
  std::string mount(const std::string& name, const std::string& type, const std::string& options,
                    const std::string& root = "/") {
    return "35 31 0:32 " + root + " " + (dir_ / name).string() + " rw,relatime shared:9 - " + type +
           " cgroup " + options + "\n";
  }
  int64_t limit() const { return memory_limit({dir_ / "cgroup", dir_ / "mountinfo"}); }
  static int64_t machine() { return memory_limit({"/none", "/none"}); }

  fs::path dir_;
};

TEST_F(MemoryLimit, IsTheMachinesWithoutGroups) {
  EXPECT_EQ(machine(), static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE));
}

TEST_F(MemoryLimit, IsTheLeastOnTheWayUpInVersion2) {
  write("mountinfo", mount("v2", "cgroup2", "rw"));
  write("cgroup", "0::/a/b/c");
  write("v2/a/b/c/memory.max", "max");
  EXPECT_EQ(limit(), machine());
  write("v2/a/memory.max", "3000000");
  write("v2/a/b/memory.max", "2000000");
  EXPECT_EQ(limit(), 2000000);
  write("v2/a/memory.max", "1000000");
  EXPECT_EQ(limit(), 1000000);
  write("v2/a/b/c/memory.max", "500000");
  EXPECT_EQ(limit(), 500000);
  write("memory.max", "1");  // above the mount
  EXPECT_EQ(limit(), 500000);
}

TEST_F(MemoryLimit, OfBothVersionsIsTheLeast) {
  write("mountinfo", mount("cpu", "cgroup", "rw,cpu") + mount("v1", "cgroup", "rw,memory") +
                         mount("v2", "cgroup2", "rw"));
  write("cgroup", "9:cpu:/x\n4:memory,hugetlb:/a/b\n0::/");
  write("cpu/x/memory.limit_in_bytes", "7");
  write("v1/memory.limit_in_bytes", "9223372036854771712");
  write("v1/a/b/memory.limit_in_bytes", "9223372036854771712");
  EXPECT_EQ(limit(), machine());
  write("v1/a/memory.limit_in_bytes", "4000000");
  EXPECT_EQ(limit(), 4000000);
  write("v2/memory.max", "3000000");
  EXPECT_EQ(limit(), 3000000);
}

TEST_F(MemoryLimit, OfAContainerIsFoundWhereItsOwnGroupIsMounted) {
  write("mountinfo", mount("own", "cgroup", "rw,memory", "/docker/abc"));
  write("own/memory.limit_in_bytes", "4000000");
  write("own/job/memory.limit_in_bytes", "3000000");
  write("cgroup", "4:memory:/docker/abc");
  EXPECT_EQ(limit(), 4000000);
  write("cgroup", "4:memory:/docker/abc/job");
  EXPECT_EQ(limit(), 3000000);
  write("cgroup", "4:memory:/");  // as it is named inside
  EXPECT_EQ(limit(), 4000000);
}

// A group below this process's own, where the system lets one be made, with a child in it.
TEST(MemoryLimitOfTheSystem, IsSeenByAProcessInAGroup) {
  constexpr int64_t kLimit = int64_t{512} << 20;
  std::ifstream in("/proc/self/cgroup");
  fs::path group, limit;
  for (std::string line; limit.empty() && std::getline(in, line);) {
    const std::string path = line.substr(line.rfind(':') + 1);
    const bool is_second = line.starts_with("0::");
    if (!is_second && line.find(":memory:") == line.npos) continue;
    group = (is_second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory") + path;
    group /= "twinkle-test-" + std::to_string(::getpid());
    std::error_code error;
    if (!fs::create_directory(group, error)) continue;
    limit = group / (is_second ? "memory.max" : "memory.limit_in_bytes");
    std::ofstream out(limit);
    out << kLimit << std::flush;
    if (out) break;
    limit.clear();
    fs::remove(group, error);
  }
  if (limit.empty()) GTEST_SKIP() << "this system lets no group with a limit of memory be made";
  const pid_t child = ::fork();
  if (child == 0) {
    std::ofstream(group / "cgroup.procs") << ::getpid() << std::flush;
    ::_exit(memory_limit() == kLimit ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(::rmdir(group.c_str()), 0);
}

}  // namespace
}  // namespace twinkle
