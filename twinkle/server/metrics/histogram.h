// Times as Prometheus has them: how many were at most each of some bounds, their number and sum.
// Not thread-safe.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <ostream>
#include <string_view>

namespace twinkle::server {

class Histogram {
 public:
  static constexpr std::array kBounds{0.001, 0.005, 0.025, 0.1,  0.25, 0.5,  1.0,
                                      2.5,   5.0,   10.0,  30.0, 60.0, 300.0};  // seconds

  void add(double seconds) {
    ++counts_[static_cast<size_t>(std::ranges::lower_bound(kBounds, seconds) - kBounds.begin())];
    sum_ += seconds;
  }

  // Its lines; `labels`: as `route="/healthz"`.
  void write(std::ostream& out, std::string_view name, std::string_view labels) const {
    int64_t num = 0;
    for (size_t i = 0; i < counts_.size(); ++i) {
      num += counts_[i];
      out << name << "_bucket{" << labels << ",le=\"";
      i < kBounds.size() ? out << kBounds[i] : out << "+Inf";
      out << "\"} " << num << '\n';
    }
    out << name << "_sum{" << labels << "} " << sum_ << '\n';
    out << name << "_count{" << labels << "} " << num << '\n';
  }

 private:
  std::array<int64_t, kBounds.size() + 1> counts_{};  // above the bound before; the last: above all
  double sum_ = 0;
};

}  // namespace twinkle::server
