#include "twinkle/mesh/sigterm.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <string>
#include <vector>

namespace twinkle::mesh {
namespace {

using std::chrono::milliseconds;

std::array<int, 2> connection() {
  std::array<int, 2> out{};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, out.data()), 0);
  return out;
}

// A watch of one rank that hears of nobody.
std::shared_ptr<Watch> watch_alone() {
  return std::make_shared<Watch>(0, 1, std::vector<int>{}, 60);
}

// The signal that a child ended by; 0: by none.
int signal_of(pid_t child) {
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

void own_handler(int) {}

TEST(SigtermHandler, EndsTheProcessByTheSignalAndTellsTheOtherRanks) {
  const auto [first, second] = connection();
  const pid_t child = fork();
  if (child == 0) {
    close(first);
    const SigtermHandler handler(std::make_shared<Watch>(1, 2, std::vector{second}, 60));
    kill(getpid(), SIGTERM);
    std::this_thread::sleep_for(std::chrono::seconds(30));
    _exit(0);
  }
  close(second);
  const Watch watch(0, 2, {first}, 60);
  EXPECT_EQ(signal_of(child), SIGTERM);
  EXPECT_EQ(watch.why_after("", ""), "mesh: rank 1 was ended by SIGTERM");
}

TEST(SigtermHandler, GivesTheScriptTimeToEndByTheErrorOfARankThatHasGone) {
  const auto [first, second] = connection();
  std::array<int, 2> said{};
  ASSERT_EQ(pipe(said.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(first);
    dup2(said[1], STDERR_FILENO);
    const SigtermHandler handler(std::make_shared<Watch>(1, 2, std::vector{second}, 60));
    kill(getpid(), SIGTERM);
    std::this_thread::sleep_for(milliseconds(SigtermHandler::kErrorsMs / 2));
    (void)!write(said[1], "error\n", 6);
    std::this_thread::sleep_for(std::chrono::seconds(30));
    _exit(0);
  }
  close(second);
  close(said[1]);
  close(first);  // as the end of rank 0 does
  EXPECT_EQ(signal_of(child), SIGTERM);
  std::array<char, 512> text{};
  std::string all;
  for (ssize_t n = 0; (n = read(said[0], text.data(), text.size())) > 0;)
    all.append(text.data(), static_cast<size_t>(n));
  close(said[0]);
  EXPECT_EQ(all.substr(0, 41), "error\ntwinkle: mesh: rank 0 has gone: its") << all;
  EXPECT_NE(all.find("; this rank was ended by SIGTERM\n"), std::string::npos) << all;
}

TEST(SigtermHandler, IsOfNoOtherSignal) {
  const pid_t child = fork();
  if (child == 0) {
    struct sigaction action = {};
    action.sa_handler = own_handler;
    sigaction(SIGUSR1, &action, nullptr);
    const SigtermHandler handler(watch_alone());
    sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &usr1, nullptr);  // no other thread but the handler's could take it
    kill(getpid(), SIGUSR1);
    std::this_thread::sleep_for(milliseconds(SigtermHandler::kNewsMs + 500));
    _exit(0);
  }
  EXPECT_EQ(signal_of(child), 0);
}

TEST(SigtermHandler, AForkEndsByTheSignalAtOnceAndItsParentGoesOn) {
  const SigtermHandler handler(watch_alone());
  const pid_t child = fork();
  if (child == 0)
    while (true) pause();
  kill(child, SIGTERM);
  EXPECT_EQ(signal_of(child), SIGTERM);
  std::this_thread::sleep_for(milliseconds(SigtermHandler::kNewsMs + 500));
}

TEST(SigtermHandler, LeavesAHandlerOfTheScriptAndGoesWithItsEnd) {
  const auto before = std::signal(SIGTERM, own_handler);
  {
    const SigtermHandler handler(watch_alone());
  }
  EXPECT_EQ(std::signal(SIGTERM, SIG_DFL), own_handler);
  {
    const SigtermHandler handler(watch_alone());
    const SigtermHandler second(watch_alone());
    EXPECT_NE(std::signal(SIGTERM, own_handler), SIG_DFL) << "the first stands";
  }
  EXPECT_EQ(std::signal(SIGTERM, before), own_handler) << "which came later";
  {
    const SigtermHandler handler(watch_alone());
  }
  EXPECT_EQ(std::signal(SIGTERM, before), SIG_DFL);
}

}  // namespace
}  // namespace twinkle::mesh
