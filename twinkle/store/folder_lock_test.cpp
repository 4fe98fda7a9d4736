#include "twinkle/store/folder_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "twinkle/base/error_for_test.h"
#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle::store {
namespace {

TEST(FolderLock, IsHeldByOneAndOthersAreToldByWhom) {
  const ScratchDir dir;
  EXPECT_EQ(holder_of(dir.path()), std::nullopt);
  EXPECT_FALSE(is_there(dir / "lock")) << "a question writes nothing";
  {
    const FileHandle lock = lock_folder(dir.path());
    EXPECT_EQ(holder_of(dir.path()), std::to_string(::getpid()));
    EXPECT_EQ(error_of([&] { lock_folder(dir.path()); }),
              "store: the folder " + dir.path().string() + " is open in process " +
                  std::to_string(::getpid()) + "; end that one, or name another folder");
  }
  EXPECT_EQ(holder_of(dir.path()), std::nullopt);
  EXPECT_GE(lock_folder(dir.path()).get(), 0) << "whoever asked holds nothing";
}

TEST(FolderLock, AQuestionRefusesNoOtherWhoTakesItMeanwhile) {
  const ScratchDir dir;
  {
    lock_folder(dir.path());
  }
  FileHandle question(::open((dir / "lock").c_str(), O_RDONLY));
  ASSERT_EQ(::flock(question.get(), LOCK_SH), 0);
  const std::jthread answered([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    question.reset();
  });
  EXPECT_GE(lock_folder(dir.path()).get(), 0);
}

TEST(FolderLock, AFolderThatIsNotThereIsHeldByNobodyAndCannotBeHeld) {
  const ScratchDir dir;
  EXPECT_EQ(holder_of(dir / "none"), std::nullopt);
  EXPECT_NE(error_of([&] { lock_folder(dir / "none"); }).find("store: cannot open "),
            std::string::npos);
}

}  // namespace
}  // namespace twinkle::store
