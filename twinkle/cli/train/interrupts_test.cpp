#include "twinkle/cli/train/interrupts.h"

#include <gtest/gtest.h>

#include <string>

namespace twinkle::cli {
namespace {

TEST(Interrupts, TheFirstSignalSetsAFlagAndEndsNothing) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const Interrupts interrupts;
    EXPECT_FALSE(interrupts.requested());
    testing::internal::CaptureStderr();
    std::raise(signal);
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              "\nfinishing this step, then saving; Ctrl-C again stops at once\n");
    EXPECT_TRUE(interrupts.requested());
  }
  struct sigaction now = {};
  ::sigaction(SIGINT, nullptr, &now);
  EXPECT_EQ(now.sa_handler, SIG_DFL);
}

TEST(InterruptsDeathTest, WhereNothingIsToBeSavedASignalEndsTheProcessWithALineAndStatus1) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const auto interrupted = [&] {
      const EndOnInterrupt at_once("stopped\n");
      std::raise(signal);
    };
    EXPECT_EXIT(interrupted(), testing::ExitedWithCode(1), "^stopped\n$");
  }
}

TEST(InterruptsDeathTest, TheSecondOneEndsTheProcess) {
  const auto twice = [] {
    const Interrupts interrupts;
    std::raise(SIGINT);
    std::raise(SIGINT);
  };
  EXPECT_EXIT(twice(), testing::ExitedWithCode(1),
              "then saving.*\n\ntwinkle: stopped before saving");
}

}  // namespace
}  // namespace twinkle::cli
