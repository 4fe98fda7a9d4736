// Progress of a training on standard error: a bar that is written over on a terminal, a line for
// each step elsewhere.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace twinkle::cli {

class Progress {
 public:
  // Steps after `first`, of `steps` in all.
  Progress(int64_t first, int64_t steps);

  // Step `step` is done. `what` is a text of its own, such as "loss 1.2345"; `num_tokens` of this
  // step count for the rate.
  void show(int64_t step, const std::string& what, double num_tokens);
  // A line of its own.
  void say(const std::string& text);
  void end();

  double seconds() const;                                  // since it was made
  double rate() const { return num_tokens_ / seconds(); }  // tokens a second

 private:
  const int64_t first_, steps_;
  const bool terminal_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double num_tokens_ = 0;
  bool open_ = false;  // the cursor stands behind a line that show() wrote
};

}  // namespace twinkle::cli
