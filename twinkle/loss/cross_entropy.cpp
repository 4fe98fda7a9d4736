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

struct Options {
  int64_t ignore_index = -100;
  std::string reduction = "sum";
  bool dft = false;

  static constexpr auto fields() {
    return std::tuple{option("ignore_index", &Options::ignore_index, any(), "no other than -100"),
                      option("reduction", &Options::reduction, one_of("sum", "mean"), "over rows"),
                      option("dft", &Options::dft, any(), "weighs a row with its probability")};
  }
};

Rows parse(const Json& json) {
  const auto o = parsed<Options>(json, "CrossEntropyLoss");
  require(o.ignore_index == -100, Code::kInvalid, "loss: ignore_index is ", o.ignore_index,
          ", labels are ignored by -100 only");
  return {.mean = o.reduction == "mean", .dft = o.dft};
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
                        .options = described<Options>,
                        .many_targets = true});
}

}  // namespace twinkle::loss
