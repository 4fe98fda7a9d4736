#include "twinkle/base/log/write.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <string>

#include "twinkle/base/file.h"
#include "twinkle/base/log/log.h"

namespace twinkle {
namespace {

class StuckPipe : public testing::Test {
 protected:
  StuckPipe() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    out_.reset(ends[0]);
    in_.reset(ends[1]);
  }
  FileHandle out_, in_;
};

TEST_F(StuckPipe, ATextIsWrittenAsFarAsThePipeTakesIt) {
  const std::string much(1 << 20, 'x');
  const size_t taken = write_within(in_.get(), much, std::chrono::milliseconds(10));
  EXPECT_GT(taken, 0U);
  EXPECT_LT(taken, much.size());
  EXPECT_EQ(write_within(in_.get(), "more", std::chrono::milliseconds(0)), 0U);
  const FileHandle stop(::eventfd(1, EFD_CLOEXEC));
  EXPECT_EQ(write_within(in_.get(), "more", std::chrono::hours(1), stop.get()), 0U);
  std::string read(taken, '\0');
  for (size_t at = 0; at < taken;) {
    const ssize_t count = ::read(out_.get(), read.data() + at, taken - at);
    ASSERT_GT(count, 0);
    at += static_cast<size_t>(count);
  }
  EXPECT_EQ(write_within(in_.get(), "more", std::chrono::hours(1)), 4U);
}

TEST_F(StuckPipe, ALogThatNobodyReadsEnds) {
  const FileHandle own(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
  ::dup2(in_.get(), STDERR_FILENO);
  {
    Log log(Level::kInfo);
    for (int i = 0; i < 20000; ++i) log.write(Level::kInfo, std::string(200, 'x'));
  }
  ::dup2(own.get(), STDERR_FILENO);
}

}  // namespace
}  // namespace twinkle
