#include "twinkle/cli/serve/signals.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <chrono>

#include "twinkle/base/log/write.h"

namespace twinkle::cli {
namespace {

// True if the signal that has come ends the server.
bool ends_by(int signalled, const std::function<void()>& hangup) {
  signalfd_siginfo which{};
  if (::read(signalled, &which, sizeof which) != sizeof which) return false;
  if (which.ssi_signo != SIGHUP) return true;
  hangup();
  return false;
}

}  // namespace

sigset_t hold_signals() {
  for (const int ignored : {SIGXFSZ, SIGPIPE, SIGUSR1, SIGUSR2}) std::signal(ignored, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  for (const int held : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, held);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

bool wait_for_end(const sigset_t& signals, bool until_stdin_ends,
                  const std::function<void()>& hangup, int other) {
  const FileHandle signalled(::signalfd(-1, &signals, SFD_CLOEXEC));
  std::array<pollfd, 3> ends{{{.fd = signalled.get(), .events = POLLIN},
                              {.fd = until_stdin_ends ? STDIN_FILENO : -1, .events = POLLIN},
                              {.fd = other, .events = POLLIN}}};
  std::array<char, 256> ignored{};
  for (;;) {
    if (::poll(ends.data(), ends.size(), -1) < 0) continue;
    if (ends[0].revents != 0 && ends_by(signalled.get(), hangup)) return true;
    if (ends[1].revents != 0 && ::read(STDIN_FILENO, ignored.data(), ignored.size()) <= 0)
      return true;
    if (ends[2].revents != 0) return false;
  }
}

void say_end() { write_within(STDOUT_FILENO, "twinkle ends\n", std::chrono::seconds(1)); }

EndsAtOnce::EndsAtOnce(const sigset_t& signals, bool until_stdin_ends, Log& log)
    : is_over_(::eventfd(0, EFD_CLOEXEC)), thread_([this, signals, until_stdin_ends, &log] {
        const auto hangup = [&log] {
          log.write(Level::kInfo, "SIGHUP: the server starts, and reads no option again");
        };
        if (!wait_for_end(signals, until_stdin_ends, hangup, is_over_.get())) return;
        say_end();
        ::_exit(0);
      }) {}

EndsAtOnce::~EndsAtOnce() {
  ::eventfd_write(is_over_.get(), 1);
  thread_.join();
}

}  // namespace twinkle::cli
