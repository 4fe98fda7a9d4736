// Ctrl-C (SIGINT) that ends an answer, or a line, but not the process, as long as this object
// lives. One at a time. Other signals end the process as before (train/interrupts.h).
#pragma once

#include <csignal>

namespace twinkle::cli {

class CtrlC {
 public:
  CtrlC();
  ~CtrlC();
  CtrlC(const CtrlC&) = delete;
  CtrlC& operator=(const CtrlC&) = delete;

  // Since the last forget(). Any thread.
  bool pressed() const;
  void forget();
  // Readable while pressed(): for poll().
  int descriptor() const;

 private:
  struct sigaction earlier_ = {};
};

}  // namespace twinkle::cli
