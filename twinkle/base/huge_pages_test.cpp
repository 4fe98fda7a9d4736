#include "twinkle/base/huge_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <fstream>
#include <sstream>
#include <string>

namespace twinkle {
namespace {

// True if the mapping that `at` lies in asks for huge pages (proc(5): hg among its VmFlags).
bool asks(const char* at) {
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    char dash = 0;
    if (std::istringstream in(line); in >> std::hex >> begin >> dash >> end && dash == '-')
      inside = reinterpret_cast<uintptr_t>(at) >= begin && reinterpret_cast<uintptr_t>(at) < end;
    if (inside && line.starts_with("VmFlags:")) return line.find(" hg") != std::string::npos;
  }
  return false;
}

class HugePages : public testing::Test {
 protected:
  static constexpr int64_t kBytes = 5 * kHugePage;
  HugePages()
      : block_(static_cast<char*>(
            mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    const auto at = reinterpret_cast<uintptr_t>(block_);
    whole_ = block_ + (kHugePage - static_cast<int64_t>(at % kHugePage)) % kHugePage;
  }
  ~HugePages() override { munmap(block_, kBytes); }

  char* block_;
  char* whole_;  // the first address in it at which a huge page can begin
};

TEST_F(HugePages, AreAskedForWhereWholeOnesLieInside) {
  ASSERT_NE(block_, MAP_FAILED);
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) GTEST_SKIP() << "none here";
  use_huge_pages(whole_ + 100, 3 * kHugePage);
  EXPECT_FALSE(asks(whole_));
  EXPECT_TRUE(asks(whole_ + kHugePage));
  EXPECT_TRUE(asks(whole_ + 3 * kHugePage - 1));
  EXPECT_FALSE(asks(whole_ + 3 * kHugePage));
}

TEST_F(HugePages, AreNotWhereNoneFits) {
  ASSERT_NE(block_, MAP_FAILED);
  use_huge_pages(whole_ + 100, kHugePage + kHugePage / 2);
  EXPECT_FALSE(asks(whole_));
  EXPECT_FALSE(asks(whole_ + kHugePage));
}

}  // namespace
}  // namespace twinkle
