#include "twinkle/cli/train/interrupts.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>

namespace twinkle::cli {
namespace {

// True whether a save has just put its state in place or not.
constexpr const char* kStopped =
    "stopped at once; if the run's folder holds a state, it is whole and --resume continues from "
    "it";

// A signal handler reaches nothing but statics.
std::atomic<bool> flag = false;
std::atomic<const char*> last_words = nullptr;  // null: the first signal ends nothing
static_assert(std::atomic<bool>::is_always_lock_free);
static_assert(std::atomic<const char*>::is_always_lock_free);

void write_error(const char* text) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text, std::strlen(text));
}

void on_signal(int signal) {
  // Standard output and error may be pipes to programs that end with the terminal.
  if (signal == SIGHUP) std::signal(SIGPIPE, SIG_IGN);
  const char* words = last_words;
  if (!words && !flag.exchange(true))
    return write_error("\nfinishing this step, then saving; Ctrl-C again stops at once\n");
  if (!words && signal == SIGHUP)
    return;  // a closed terminal sends it twice: the shell, the kernel
  write_error("\ntwinkle: ");
  write_error(words ? words : kStopped);
  write_error("\n");
  ::_exit(1);
}

void handle_signals() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  struct sigaction hang_up = {};
  ::sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) ::sigaction(SIGHUP, &action, nullptr);  // else nohup's
  sigset_t held;  // by the console script, until now (twinkle/program.py)
  ::sigemptyset(&held);
  ::sigaddset(&held, SIGINT);
  ::sigaddset(&held, SIGTERM);
  ::sigaddset(&held, SIGHUP);
  ::pthread_sigmask(SIG_UNBLOCK, &held, nullptr);
}

}  // namespace

void end_on_interrupt(const char* text) {
  last_words = text;
  handle_signals();
}

void finish_on_interrupt() {
  flag = false;
  last_words = nullptr;
  handle_signals();
}

bool interrupted() { return flag; }

}  // namespace twinkle::cli
