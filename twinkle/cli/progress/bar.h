// How far something is, on standard error: a bar with rate and time left that is written over on a
// terminal, elsewhere a line for each tenth. One thread.
#pragma once
#include <chrono>
#include <string>

namespace twinkle::cli {

class Bar {
 public:
  // "WHAT 12/100 UNIT  3.4 UNIT/s  0:26 left".
  Bar(std::string what, double total, std::string unit);
  ~Bar() { end(); }
  Bar(const Bar&) = delete;
  Bar& operator=(const Bar&) = delete;

  // `more` ends the line.
  void show(double done, const std::string& more = "");
  // The line stays as it is; what is printed next has its own.
  void end();

 private:
  const std::string what_, unit_;
  const double total_;
  const bool terminal_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point shown_;
  int tenths_ = 0;     // that have their line
  bool open_ = false;  // a line of the terminal is written over
};

}  // namespace twinkle::cli
