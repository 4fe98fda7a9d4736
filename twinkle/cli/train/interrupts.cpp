#include "twinkle/cli/train/interrupts.h"

#include <unistd.h>

#include <atomic>

namespace twinkle::cli {
namespace {

// A signal handler reaches nothing but statics.
std::atomic<bool> flag = false;
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int) {
  flag = true;
  constexpr char kText[] = "\nfinishing this step, then saving; Ctrl-C again stops at once\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kText, sizeof kText - 1);
}

}  // namespace

Interrupts::Interrupts() {
  flag = false;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  ::sigaction(SIGINT, &action, &earlier_int_);
  ::sigaction(SIGTERM, &action, &earlier_term_);
}

Interrupts::~Interrupts() {
  ::sigaction(SIGINT, &earlier_int_, nullptr);
  ::sigaction(SIGTERM, &earlier_term_, nullptr);
}

bool Interrupts::requested() const { return flag; }

}  // namespace twinkle::cli
