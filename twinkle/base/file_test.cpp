#include "twinkle/base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <thread>

#include "twinkle/base/error_for_test.h"
#include "twinkle/base/parallel.h"

namespace twinkle {
namespace {

namespace fs = std::filesystem;

class FileTest : public testing::Test {
 protected:
  FileTest() {
    std::string pattern = (fs::temp_directory_path() / "twinkle-test-XXXXXX").string();
    dir_ = ::mkdtemp(pattern.data());
  }
  ~FileTest() override { fs::remove_all(dir_); }

  fs::path write(const std::string& name, const std::string& text) {
    std::ofstream(dir_ / name, std::ios::binary) << text;
    return dir_ / name;
  }

  fs::path dir_;
};

TEST_F(FileTest, ReadsAnyRangeAndAllOfIt) {
  const File file(write("x", "abcdef"));
  EXPECT_EQ(file.size(), 6);
  EXPECT_EQ(file.path(), dir_ / "x");
  std::array<std::byte, 3> part{};
  file.read_at(2, part);
  EXPECT_EQ(part[0], std::byte{'c'});
  EXPECT_EQ(part[2], std::byte{'e'});
  file.read_at(6, {});
  EXPECT_EQ(read_file(dir_ / "x"), "abcdef");
  EXPECT_EQ(read_file(write("empty", "")), "");
}

TEST_F(FileTest, StaysReadableWhenItsNameIsGone) {
  const File file(write("x", "abc"));
  fs::remove(dir_ / "x");
  std::array<std::byte, 3> all{};
  file.read_at(0, all);
  EXPECT_EQ(all[2], std::byte{'c'});
}

// A mapping would end the process here (SIGBUS).
TEST_F(FileTest, AFileThatBecomesShorterIsAnError) {
  const File file(write("x", std::string(10000, 'x')));
  fs::resize_file(dir_ / "x", 5000);
  std::array<std::byte, 10000> all{};
  EXPECT_EQ(invalid_of([&] { file.read_at(0, all); }),
            "io: " + (dir_ / "x").string() +
                " had 10000 bytes when it was opened and now ends at byte 5000: it was cut or "
                "replaced meanwhile; wait until its writer is done, then read it again");
}

TEST_F(FileTest, SaysWhatIsNoRegularFileAndWaitsForNobody) {
  const auto error = [](const fs::path& path) { return error_of([&] { File file(path); }); };
  const std::string path = dir_.string();
  EXPECT_EQ(error(dir_ / "none"), "io: cannot open " + path + "/none: No such file or directory");
  EXPECT_EQ(error(dir_), "io: " + path + " is a folder, it must be a regular file");
  ASSERT_EQ(::mkfifo((dir_ / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(error(dir_ / "fifo"), "io: " + path + "/fifo is a FIFO, it must be a regular file");
  EXPECT_EQ(error("/dev/zero"), "io: /dev/zero is a device, it must be a regular file");
  fs::create_symlink(dir_ / "loop", dir_ / "loop");
  EXPECT_EQ(error(dir_ / "loop"),
            "io: cannot open " + path +
                "/loop: Too many levels of symbolic links; put the file itself there");
}

TEST_F(FileTest, RefusesMoreThanTheLimitBeforeItIsRead) {
  fs::resize_file(write("large", ""), uintmax_t{1} << 40);  // a hole
  EXPECT_EQ(invalid_of([&] { read_file(dir_ / "large", "data", 100); }),
            "data: " + (dir_ / "large").string() + " has 1099511627776 bytes, the limit is 100");
}

TEST_F(FileTest, KnowsWhatIsThere) {
  EXPECT_FALSE(is_there(dir_ / "none"));
  EXPECT_FALSE(is_there(write("x", "") / "below"));
  EXPECT_TRUE(is_there(dir_ / "x"));
  fs::create_symlink("nowhere", dir_ / "dangling");
  EXPECT_FALSE(is_there(dir_ / "dangling"));
  fs::create_symlink("loop", dir_ / "loop");
  EXPECT_TRUE(is_there(dir_ / "loop")) << "opening it says what is wrong";
}

TEST_F(FileTest, AReaderThatIsInterruptedReadsNoMore) {
  const File file(write("x", "abc"));
  std::array<std::byte, 3> all{};
  const Interrupt interrupt([] { return true; });
  file.read_at(0, all);
  std::this_thread::sleep_for(Interrupt::kSlice);
  EXPECT_THROW(file.read_at(0, all), Interrupted);
}

TEST_F(FileTest, ListsTheNamesInAFolderAndSaysWhyItCannot) {
  std::error_code error;
  EXPECT_TRUE(names_in(dir_, error).empty());
  EXPECT_FALSE(error);
  write("x", "");
  write(".hidden", "");
  EXPECT_EQ(names_in(dir_, error).size(), 2u);
  EXPECT_TRUE(names_in(dir_ / "none", error).empty());
  EXPECT_EQ(error, std::errc::no_such_file_or_directory);
  EXPECT_TRUE(names_in(dir_ / "x", error).empty());
  EXPECT_EQ(error, std::errc::not_a_directory);
}

TEST_F(FileTest, RemovesATreeAndNothingThatItsLinksLeadTo) {
  const fs::path stays = write("stays", "x");
  fs::create_directories(dir_ / "tree/a/b");
  write("tree/a/b/file", "x");
  fs::create_symlink(dir_, dir_ / "tree/a/link");
  fs::create_symlink(stays, dir_ / "link");
  for (const char* gone : {"tree", "link", "none"}) {
    remove_tree(dir_ / gone);
    EXPECT_FALSE(fs::exists(fs::symlink_status(dir_ / gone))) << gone;
  }
  EXPECT_EQ(read_file(stays), "x");
}

TEST_F(FileTest, ClosesWhatItOpened) {
  write("x", "abc");
  const auto num_open = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  const auto before = num_open();
  std::error_code ignored;
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(read_file(dir_ / "x"), "abc");
    names_in(dir_, ignored);
    fs::create_directory(dir_ / "y");
    remove_tree(dir_ / "y");
  }
  EXPECT_EQ(num_open(), before);
}

}  // namespace
}  // namespace twinkle
