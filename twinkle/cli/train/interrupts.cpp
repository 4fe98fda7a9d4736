#include "twinkle/cli/train/interrupts.h"

#include <unistd.h>

#include <atomic>
#include <cstring>

namespace twinkle::cli {
namespace {

// A signal handler reaches nothing but statics.
std::atomic<bool> flag = false;
std::atomic<const char*> last_words = nullptr;
static_assert(std::atomic<bool>::is_always_lock_free);
static_assert(std::atomic<const char*>::is_always_lock_free);

void write_error(const char* text) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text, std::strlen(text));
}

void on_signal(int) {
  if (flag.exchange(true)) {
    write_error("\ntwinkle: stopped before saving; a state that was saved earlier is whole\n");
    ::_exit(1);
  }
  write_error("\nfinishing this step, then saving; Ctrl-C again stops at once\n");
}

void on_last_signal(int) {
  write_error(last_words);
  ::_exit(1);
}

}  // namespace

SignalHandlers::SignalHandlers(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, &earlier_int_);
  ::sigaction(SIGTERM, &action, &earlier_term_);
}

SignalHandlers::~SignalHandlers() {
  ::sigaction(SIGINT, &earlier_int_, nullptr);
  ::sigaction(SIGTERM, &earlier_term_, nullptr);
}

EndOnInterrupt::EndOnInterrupt(const char* text) : handlers_((last_words = text, on_last_signal)) {}

Interrupts::Interrupts() : handlers_((flag = false, on_signal)) {}

bool Interrupts::requested() const { return flag; }

}  // namespace twinkle::cli
