// Whose turn it is when training and sampling both wait: the side that has used less than its share
// of the time. A side that has nothing to do earns nothing, and its claim ends. Who runs meanwhile
// pays off what it owes and no more is held against it. No clock: the caller measures.
#pragma once
#include <algorithm>

namespace twinkle::engine {

enum class Side { kTraining, kSampling };

class Turns {
 public:
  explicit Turns(double sampling_share) : share_(sampling_share) {}  // above 0, below 1

  // At least one side waits.
  Side next(bool training, bool sampling) const {
    if (!sampling) return Side::kTraining;
    if (!training) return Side::kSampling;
    return lead_ > 0 ? Side::kTraining : Side::kSampling;
  }

  // `side` ran for `seconds`; `contested`: the other side waited.
  void ran(Side side, double seconds, bool contested) {
    if (side == Side::kSampling) {
      lead_ += seconds * (1 - share_);
      if (!contested) lead_ = std::min(lead_, 0.0);
    } else {
      lead_ -= seconds * share_;
      if (!contested) lead_ = std::max(lead_, 0.0);
    }
  }

 private:
  double share_;
  double lead_ = 0;  // of sampling: its seconds * (1 - share) - training's seconds * share
};

}  // namespace twinkle::engine
