// Losses of a pair of a chosen and a rejected reply, as functions of their rewards or of the margin
// between these.
#pragma once
#include <algorithm>
#include <cmath>

#include "twinkle/loss/options.h"
#include "twinkle/loss/rows.h"

namespace twinkle::loss {

inline double log_sigmoid(double x) {
  return std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x)));
}
inline double sigmoid(double x) { return std::exp(log_sigmoid(x)); }

// The loss of the margin M: -(1 - s) log sigmoid(M) - s log sigmoid(-M), s being the probability
// that the pair is labelled the other way round.
inline Term of_sigmoid(double margin, double s = 0) {
  return {-(1 - s) * log_sigmoid(margin) - s * log_sigmoid(-margin),
          -(1 - s) * sigmoid(-margin) + s * sigmoid(margin)};
}

// max(0, 1 - M) (Zhao et al. 2023, arXiv 2305.10425, section 2.2).
inline Term of_hinge(double margin) { return {std::max(0.0, 1 - margin), margin < 1 ? -1.0 : 0.0}; }

// (M - 1 / (2 beta))^2 (Azar et al. 2023, arXiv 2310.12036, eq. 17).
inline Term of_ipo(double margin, double beta) {
  const double gap = margin - 1 / (2 * beta);
  return {gap * gap, 2 * gap};
}

// A pair's loss, and its derivatives by the two rewards.
struct PairLoss {
  double value, chosen, rejected;
};
// 1 - sigmoid(chosen) + sigmoid(rejected) (Ethayarajh et al. 2024, arXiv 2402.01306).
inline PairLoss of_kto(double chosen, double rejected) {
  const double w = sigmoid(chosen), l = sigmoid(rejected);
  return {1 - w + l, -w * sigmoid(-chosen), l * sigmoid(-rejected)};
}

struct PairOptions {
  double beta = 0.1, smooth = 0;  // smooth is for of_sigmoid
  std::string type = "sigmoid";

  static constexpr auto fields() {
    return std::tuple{option("beta", &PairOptions::beta, above(0), "factor of the rewards"),
                      option("label_smoothing", &PairOptions::smooth, between(0, 0.5),
                             "share of pairs labelled the other way round"),
                      option("loss_type", &PairOptions::type,
                             one_of("sigmoid", "hinge", "ipo", "kto_pair"), "a pair's loss")};
  }
};

inline PairLoss of_rewards(const PairOptions& o, double chosen, double rejected) {
  if (o.type == "kto_pair") return of_kto(chosen, rejected);
  const double margin = chosen - rejected;
  const Term loss = o.type == "hinge" ? of_hinge(margin)
                    : o.type == "ipo" ? of_ipo(margin, o.beta)
                                      : of_sigmoid(margin, o.smooth);
  return {loss.value, loss.grad, -loss.grad};
}

}  // namespace twinkle::loss
