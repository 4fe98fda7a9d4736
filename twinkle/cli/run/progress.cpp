#include "twinkle/cli/run/progress.h"

#include <unistd.h>

#include <array>
#include <cstdio>

namespace twinkle::cli {
namespace {

std::string duration(double seconds) {
  std::array<char, 32> text{};
  if (seconds < 100) {
    std::snprintf(text.data(), text.size(), "%.0f s", seconds);
  } else if (seconds < 6000) {
    std::snprintf(text.data(), text.size(), "%.0f min", seconds / 60);
  } else {
    std::snprintf(text.data(), text.size(), "%.1f h", seconds / 3600);
  }
  return text.data();
}

std::string bar(int64_t step, int64_t steps) {
  constexpr int64_t kWidth = 20;
  const auto full = static_cast<size_t>(kWidth * step / steps);
  return "[" + std::string(full, '#') + std::string(kWidth - full, '.') + "] ";
}

}  // namespace

Progress::Progress(int64_t first, int64_t steps)
    : first_(first), steps_(steps), terminal_(::isatty(STDERR_FILENO) == 1) {}

double Progress::seconds() const {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  return elapsed.count();
}

void Progress::show(int64_t step, const std::string& what, double num_tokens) {
  num_tokens_ += num_tokens;
  const double left =
      seconds() / static_cast<double>(step - first_) * static_cast<double>(steps_ - step);
  std::fprintf(stderr, "%s%sstep %lld/%lld  %s  %.0f tokens/s  %s left%s", terminal_ ? "\r" : "",
               terminal_ ? bar(step, steps_).c_str() : "", static_cast<long long>(step),
               static_cast<long long>(steps_), what.c_str(), rate(), duration(left).c_str(),
               terminal_ ? "   " : "\n");
  open_ = terminal_;
}

void Progress::say(const std::string& text) {
  std::fprintf(stderr, "%s%s\n", open_ ? "\n" : "", text.c_str());
  open_ = false;
}

void Progress::end() {
  if (open_) std::fputc('\n', stderr);
  open_ = false;
}

}  // namespace twinkle::cli
