// Cross entropy over scored rows: sum of -w log p(target), or its mean over rows with w != 0.
// Options: reduction "sum" (default) or "mean"; dft (default false): each row is also weighted with
// its own probability, taken as a constant (dynamic fine-tuning, Wu et al. 2025, eq. 9);
// ignore_index -100 (the weights say which rows are scored).
#include <algorithm>
#include <cmath>

#include "twinkle/loss/options.h"
#include "twinkle/loss/rows.h"

namespace twinkle::loss {
namespace {

// As RowLoss, in the type of the log-probabilities.
struct Rows {
  bool mean = false, dft = false;
  double factor = -1, num_tokens = 0;

  template <class Real>
  Term of(int64_t, Real weight, Real logprob) const {
    const Real slope = static_cast<Real>(factor) * weight;
    if (weight == 0) return {0, slope};  // an ignored row's log-probability may be anything
    const double value = double{weight} * logprob;
    if (!dft) return {value, slope};
    return {value * std::exp(double{logprob}), slope * std::exp(logprob)};
  }
};

Rows parse(const Json& json) {
  check_known(json, "CrossEntropyLoss", {"reduction", "dft", "ignore_index"});
  const std::string reduction = choice(json, "CrossEntropyLoss", "reduction", {"sum", "mean"});
  const auto ignored = get_or<int64_t>(json, "ignore_index", -100);
  require(ignored == -100, Code::kInvalid, "loss: ignore_index of CrossEntropyLoss is ", ignored,
          ", labels are ignored by -100 only");
  return {.mean = reduction == "mean", .dft = get_or<bool>(json, "dft", false)};
}

Rows make(const Inputs& in, const Json& json) {
  Rows rows = parse(json);
  const double scored = num_scored(in.weights);
  if (rows.mean) rows.factor = scored > 0 ? -1 / scored : 0;
  rows.num_tokens = rows.mean ? std::min(scored, 1.0) : scored;
  return rows;
}

}  // namespace

Loss cross_entropy() {
  return of_rows<make>({.name = "cross_entropy",
                        .class_name = "CrossEntropyLoss",
                        .extras = {},
                        .check = checked<parse>,
                        .many_targets = true});
}

}  // namespace twinkle::loss
