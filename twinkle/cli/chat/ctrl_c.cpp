#include "twinkle/cli/chat/ctrl_c.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "twinkle/base/error.h"

namespace twinkle::cli {
namespace {

// A signal handler reaches nothing but statics; any thread may run it.
std::atomic<int> woken = -1;
static_assert(std::atomic<int>::is_always_lock_free);

void on_ctrl_c(int) {
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(woken, &one, sizeof one);
}

}  // namespace

CtrlC::CtrlC() {
  woken = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  require(woken >= 0, Code::kInternal, "cli: cannot create a descriptor for Ctrl-C");
  struct sigaction action = {};
  action.sa_handler = on_ctrl_c;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, &earlier_);
}

CtrlC::~CtrlC() {
  ::sigaction(SIGINT, &earlier_, nullptr);
  ::close(woken.exchange(-1));
}

bool CtrlC::pressed() const {
  uint64_t count = 0;  // read, and put back: only forget() takes it
  if (::read(woken, &count, sizeof count) < 0) return false;
  on_ctrl_c(SIGINT);
  return true;
}

void CtrlC::forget() {
  uint64_t count = 0;
  [[maybe_unused]] const auto taken = ::read(woken, &count, sizeof count);
}

int CtrlC::descriptor() const { return woken; }

}  // namespace twinkle::cli
