#include "twinkle/io/folder/private.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle {
namespace {

unsigned mode_of(const std::filesystem::path& path) {
  struct stat out{};
  EXPECT_EQ(::stat(path.c_str(), &out), 0) << path;
  return out.st_mode & 0777U;
}

TEST(PrivateFolders, AreMadeForTheirUserAloneAndThoseThatAreThereStay) {
  const ScratchDir dir;
  const std::filesystem::path there = dir / "there";
  ASSERT_EQ(::mkdir(there.c_str(), 0755), 0);
  ASSERT_EQ(::chmod(there.c_str(), 0755), 0);
  std::error_code error;
  EXPECT_TRUE(make_private_folders(there / "a" / "b", error)) << error.message();
  EXPECT_EQ(mode_of(there), 0755U);
  EXPECT_EQ(mode_of(there / "a"), 0700U);
  EXPECT_EQ(mode_of(there / "a/b"), 0700U);
  EXPECT_FALSE(make_private_folders(there / "a" / "b", error));
  EXPECT_FALSE(error) << error.message();
}

TEST(PrivateFolders, WhatStandsInTheWayIsAnError) {
  const ScratchDir dir;
  std::ofstream(dir / "file") << "x";
  std::error_code error;
  EXPECT_FALSE(make_private_folders(dir / "file" / "a", error));
  EXPECT_TRUE(error);
  EXPECT_FALSE(make_private_folders(dir / "file", error));
  EXPECT_TRUE(error);
}

}  // namespace
}  // namespace twinkle
