#include "twinkle/io/mapped_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "twinkle/base/limit_for_test.h"
#include "twinkle/io/scratch_dir.h"

namespace twinkle {
namespace {

TEST(MappedFile, HoldsTheBytesWhereverItIsMoved) {
  const ScratchDir dir;
  write_text(dir / "x", "abc");
  write_text(dir / "empty", "");
  MappedFile file(dir / "x");
  const std::byte* const start = file.bytes().data();
  MappedFile moved(std::move(file));
  MappedFile other(dir / "empty");
  EXPECT_TRUE(other.bytes().empty());
  other = std::move(moved);
  EXPECT_EQ(other.bytes().data(), start);
  EXPECT_EQ(other.bytes().size(), 3U);
  EXPECT_EQ(other.bytes()[2], std::byte{'c'});
  EXPECT_EQ(other.path(), dir / "x");
}

// Whether the process has the file in its address space, not a copy of its bytes.
bool is_mapped(const std::filesystem::path& file) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.ends_with(file.string())) return true;
  }
  return false;
}

TEST(MappedFile, MapsTheFileForAsLongAsItLivesAndReadsNothingIntoTheHeap) {
  const ScratchDir dir;
  write_text(dir / "x", "abc");
  const std::filesystem::path path = std::filesystem::canonical(dir / "x");
  EXPECT_FALSE(is_mapped(path));
  {
    const MappedFile file(path);
    EXPECT_TRUE(is_mapped(path));
  }
  EXPECT_FALSE(is_mapped(path));
}

TEST(MappedFile, SaysWhyItCannotOpen) {
  const ScratchDir dir;
  EXPECT_EQ(error_of([&] { MappedFile file(dir / "none"); }),
            "io: cannot open " + (dir / "none").string() + ": No such file or directory");
  EXPECT_EQ(error_of([&] { MappedFile file(dir.path()); }),
            "io: " + dir.path().string() + " is not a regular file");
}

TEST(MappedFile, SaysThatItCannotMap) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory would hit the limit";
#endif
  const ScratchDir dir;
  const auto file = dir / "large";
  write_text(file, "");
  std::filesystem::resize_file(file, uintmax_t{1} << 32);  // a hole
  const std::string text = error_of([&] {
    const LimitForTest tight(RLIMIT_AS, rlim_t{1} << 31);
    MappedFile mapped(file);
  });
  EXPECT_EQ(text,
            "io: cannot map " + file.string() + " (4294967296 bytes): Cannot allocate memory");
}

}  // namespace
}  // namespace twinkle
