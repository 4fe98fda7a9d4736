#include "twinkle/cli/progress/bar.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

namespace twinkle::cli {
namespace {

constexpr int kWidth = 20;                          // characters of the bar
constexpr std::chrono::milliseconds kRefresh{100};  // between two lines of a terminal

}  // namespace

Bar::Bar(std::string what, double total, std::string unit)
    : what_(std::move(what)),
      unit_(std::move(unit)),
      total_(std::max(total, 1e-9)),
      terminal_(::isatty(STDERR_FILENO) == 1) {}

void Bar::show(double done, const std::string& more) {
  const auto now = std::chrono::steady_clock::now();
  const bool last = done >= total_;
  const int tenths = static_cast<int>(10 * std::min(done / total_, 1.0));
  if (terminal_ ? now - shown_ < kRefresh && !last : tenths <= tenths_) return;
  shown_ = now;
  tenths_ = tenths;
  const double seconds = std::max(std::chrono::duration<double>(now - start_).count(), 1e-9);
  const double rate = done / seconds;
  const double left = rate > 0 ? std::max(total_ - done, 0.0) / rate : 0;
  const int full = static_cast<int>(kWidth * std::min(done / total_, 1.0));
  const std::string bar = std::string(full, '#') + std::string(kWidth - full, '.');
  const auto whole = static_cast<long long>(std::lround(left));
  std::fprintf(stderr, "%s%s %s %.0f/%.0f %s  %.*f %s/s  %lld:%02lld left%s%s%s",
               terminal_ ? "\r" : "", what_.c_str(), bar.c_str(), done, total_, unit_.c_str(),
               rate < 10    ? 2
               : rate < 100 ? 1
                            : 0,
               rate, unit_.c_str(), whole / 60, whole % 60, more.empty() ? "" : "  ", more.c_str(),
               terminal_ ? "   " : "\n");
  open_ = terminal_;
}

void Bar::end() {
  if (open_) std::fputs("\n", stderr);
  open_ = false;
}

}  // namespace twinkle::cli
