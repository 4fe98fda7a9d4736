// Ctrl-C (SIGINT) and SIGTERM: they end a command with a word, or let it end in good order.
#pragma once
#include <csignal>

namespace twinkle::cli {

// A handler of both signals while an object lives; the earlier ones come back after it.
class SignalHandlers {
 public:
  explicit SignalHandlers(void (*handler)(int));
  ~SignalHandlers();
  SignalHandlers(const SignalHandlers&) = delete;
  SignalHandlers& operator=(const SignalHandlers&) = delete;

 private:
  struct sigaction earlier_int_ = {}, earlier_term_ = {};
};

// While an object lives, a signal ends the process with status 1 after `text`, a literal, on
// standard error. One at a time.
class EndOnInterrupt {
 public:
  explicit EndOnInterrupt(const char* text);

 private:
  SignalHandlers handlers_;
};

// While an object lives, the first of these signals sets a flag and says on standard error what
// happens now; a second one ends the process at once, with status 1. One at a time.
class Interrupts {
 public:
  Interrupts();

  bool requested() const;

 private:
  SignalHandlers handlers_;
};

}  // namespace twinkle::cli
