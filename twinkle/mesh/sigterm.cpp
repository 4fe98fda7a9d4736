#include "twinkle/mesh/sigterm.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <string>
#include <utility>

namespace twinkle::mesh {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLookMs = 20;

// A signal handler reaches nothing but statics.
std::atomic<int> wake = -1;
std::atomic<pid_t> process = 0;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<pid_t>::is_always_lock_free);

void end_by_sigterm() {
  std::signal(SIGTERM, SIG_DFL);
  kill(getpid(), SIGTERM);  // in the handler: when it returns
}

void on_sigterm(int) {
  const int error = errno;
  const uint64_t one = 1;
  if (getpid() != process || write(wake, &one, sizeof(one)) < 0) end_by_sigterm();
  errno = error;
}

bool has_handler(void (*handler)(int)) {
  struct sigaction now = {};
  return sigaction(SIGTERM, nullptr, &now) == 0 && now.sa_handler == handler;
}

}  // namespace

SigtermHandler::SigtermHandler(std::shared_ptr<Watch> watch) : watch_(std::move(watch)) {
  if (!has_handler(SIG_DFL)) return;
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) return;  // no file is free: the signal ends the process at once
  wake = wake_;
  process = getpid();
  sigset_t all, before;  // the thread's masks: no other signal is its
  sigfillset(&all);
  sigdelset(&all, SIGTERM);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { answer(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  struct sigaction action = {};
  action.sa_handler = on_sigterm;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
}

SigtermHandler::~SigtermHandler() {
  if (wake_ < 0) return;
  if (getpid() != process) {  // in a fork, which does not have the thread
    thread_.detach();
    return;
  }
  if (has_handler(on_sigterm)) std::signal(SIGTERM, SIG_DFL);
  ends_ = true;
  const uint64_t one = 1;
  (void)!write(wake_, &one, sizeof(one));
  thread_.join();
  wake = -1;  // before another file has the number
  close(wake_);
}

// Until SIGTERM or the end of the handler comes, or so many milliseconds have passed. False:
// neither has come.
bool SigtermHandler::wait(int ms) {
  pollfd fd{wake_, POLLIN, 0};
  poll(&fd, 1, ms);
  uint64_t count = 0;
  return read(wake_, &count, sizeof(count)) == sizeof(count);
}

void SigtermHandler::answer() {
  while (!wait(-1)) {
  }
  auto end = Clock::now() + std::chrono::milliseconds(kNewsMs);
  while (Clock::now() < end && !ends_ && watch_->why("").empty()) wait(kLookMs);
  const std::string why = watch_->why("");
  if (why.empty() && !ends_) {
    watch_->fail("", "mesh: rank " + std::to_string(watch_->rank()) + " was ended by SIGTERM");
  } else {
    end = Clock::now() + std::chrono::milliseconds(kErrorsMs);
    while (Clock::now() < end && !ends_) wait(kLookMs);
    if (ends_) return;
    const std::string text = "twinkle: " + why + "; this rank was ended by SIGTERM\n";
    (void)!write(STDERR_FILENO, text.data(), text.size());
  }
  end_by_sigterm();
}

}  // namespace twinkle::mesh
