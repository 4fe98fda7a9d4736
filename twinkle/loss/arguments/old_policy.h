// A policy beside the one that sampled its batch: far from it, something else has changed than its
// weights.
#pragma once
#include <cstdint>
#include <string>

namespace twinkle::loss {

// log p less the old one, of the labels that a loss learns from.
struct Gaps {
  int64_t count = 0;
  double sum = 0, sum_of_ratios = 0;

  void add(double logprob, double old_logprob);
};

// A text for the log where the mean ratio of the two, or its geometric mean, is not within 0.8 and
// 1.25; else empty.
std::string ratio_warning(const Gaps& gaps);

}  // namespace twinkle::loss
