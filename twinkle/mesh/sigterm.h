// SIGTERM, by which a launcher ends the other ranks of a script when one has ended: torchrun within
// 0.1 s, sooner than a call that has failed by it can say which rank it was. While a SigtermHandler
// lives the signal ends the process as it does without, but not before the watch has been asked.
#pragma once
#include <atomic>
#include <memory>
#include <thread>

#include "twinkle/mesh/watch.h"

namespace twinkle::mesh {

class SigtermHandler {
 public:
  // How long a watch has after the signal to hear of a rank that has gone, and how long the calls
  // and the script of this process then have to end by its error.
  static constexpr int kNewsMs = 1000, kErrorsMs = 5000;

  // Does nothing where SIGTERM has another handler, as a script's own, or one of these: one stands
  // in a process. A process that is forked from this one ends by the signal at once.
  explicit SigtermHandler(std::shared_ptr<Watch> watch);
  ~SigtermHandler();
  SigtermHandler(const SigtermHandler&) = delete;
  SigtermHandler& operator=(const SigtermHandler&) = delete;

 private:
  void answer();
  bool wait(int ms);

  const std::shared_ptr<Watch> watch_;
  int wake_ = -1;  // -1: this one does nothing
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

}  // namespace twinkle::mesh
