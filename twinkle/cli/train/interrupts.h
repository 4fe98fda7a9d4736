// Ctrl-C (SIGINT) and SIGTERM while something runs that should end in good order.
#pragma once
#include <csignal>

namespace twinkle::cli {

// While an object lives, the first of these signals sets a flag and says on standard error what
// happens now; a second one ends the process at once. One at a time.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();  // puts the handlers back that were there
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  bool requested() const;

 private:
  struct sigaction earlier_int_ = {}, earlier_term_ = {};
};

}  // namespace twinkle::cli
