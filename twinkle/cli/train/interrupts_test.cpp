#include "twinkle/cli/train/interrupts.h"

#include <gtest/gtest.h>

#include <csignal>

namespace twinkle::cli {
namespace {

class Interrupts : public testing::Test {
 protected:
  Interrupts() { std::signal(SIGHUP, SIG_DFL); }  // whatever these tests are run under
  ~Interrupts() override {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_DFL);
  }
};
using InterruptsDeathTest = Interrupts;

TEST_F(Interrupts, TheFirstSignalSetsAFlagAndEndsNothing) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    finish_on_interrupt();
    EXPECT_FALSE(interrupted());
    testing::internal::CaptureStderr();
    std::raise(signal);
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              "\nfinishing this step, then saving; Ctrl-C again stops at once\n");
    EXPECT_TRUE(interrupted());
  }
}

TEST_F(InterruptsDeathTest, WhereNothingIsToBeSavedASignalEndsTheProcessWithALineAndStatus1) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const auto at_once = [&] {
      finish_on_interrupt();
      end_on_interrupt("stopped");
      std::raise(signal);
    };
    EXPECT_EXIT(at_once(), testing::ExitedWithCode(1), "^\ntwinkle: stopped\n$");
  }
}

TEST_F(InterruptsDeathTest, ASignalThatWasHeldBackEndsTheProcessOnceItIsHandled) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const auto held = [&] {
      sigset_t one;
      ::sigemptyset(&one);
      ::sigaddset(&one, signal);
      ::pthread_sigmask(SIG_BLOCK, &one, nullptr);
      std::raise(signal);
      end_on_interrupt("stopped");
    };
    EXPECT_EXIT(held(), testing::ExitedWithCode(1), "^\ntwinkle: stopped\n$");
  }
}

TEST_F(InterruptsDeathTest, TheSecondOneEndsTheProcessAndSaysOnlyWhatIsTrueAfterASaveToo) {
  const auto twice = [] {
    finish_on_interrupt();
    std::raise(SIGINT);
    std::raise(SIGINT);
  };
  EXPECT_EXIT(twice(), testing::ExitedWithCode(1),
              "then saving.*\n\ntwinkle: stopped at once; if the run's folder holds a state, it is "
              "whole and --resume continues from it\n$");
}

TEST_F(Interrupts, AClosedTerminalSendsItsSignalTwiceAndEndsNothing) {
  finish_on_interrupt();
  testing::internal::CaptureStderr();
  std::raise(SIGHUP);
  std::raise(SIGHUP);
  std::raise(SIGPIPE);  // from a reader that ended with the terminal
  testing::internal::GetCapturedStderr();
  EXPECT_TRUE(interrupted());
  std::signal(SIGPIPE, SIG_DFL);
}

TEST_F(Interrupts, WhereTheTerminalsSignalIsIgnoredItStaysSo) {
  std::signal(SIGHUP, SIG_IGN);
  finish_on_interrupt();
  std::raise(SIGHUP);
  EXPECT_FALSE(interrupted());
}

}  // namespace
}  // namespace twinkle::cli
