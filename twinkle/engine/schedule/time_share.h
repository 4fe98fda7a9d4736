// The share of time that training and sampling get when both wait: the side that has used less than
// its share runs next. A side that is idle earns no credit and loses what it had; the side that
// runs meanwhile works off its debt and runs up no new one. No clock: the caller measures.
#pragma once
#include <algorithm>

namespace twinkle::engine {

enum class Side { kTraining, kSampling };

class TimeShare {
 public:
  explicit TimeShare(double sampling_share) : share_(sampling_share) {}  // above 0, below 1

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
  double lead_ = 0;  // balance of sampling: its seconds * (1 - share) - training's seconds * share
};

}  // namespace twinkle::engine
