// Odds ratio preference optimization (Hong et al. 2024, arXiv 2403.07691, eq. 6): the chosen
// replies' -log p, a mean over their rows, and lambda_orpo times -log sigmoid(log odds(w) - log
// odds(l)), the mean over pairs; odds(y) = p / (1 - p) of p = exp(mean log p). Options: lambda_orpo
// (0.1). No extras.
#include <cmath>
#include <numbers>

#include "twinkle/loss/replies/preference.h"

namespace twinkle::loss {
namespace {

struct Options {
  double lambda_orpo = 0.1;

  static constexpr auto fields() {
    return std::tuple{
        option("lambda_orpo", &Options::lambda_orpo, at_least(0), "weight of the odds ratio")};
  }
};

Options parse(const Json& json) { return parsed<Options>(json, "ORPOLoss"); }

// log(p / (1 - p)) of log p and its derivative. The two forms of log(1 - p) are exact near p = 1
// and near p = 0; p itself stays below 1, where the odds are infinite.
Term log_odds(double mean) {
  constexpr double kMost = -1e-12;
  const double log_p = std::min(mean, kMost);
  const double log_rest =
      log_p > -std::numbers::ln2 ? std::log(-std::expm1(log_p)) : std::log1p(-std::exp(log_p));
  return {log_p - log_rest, mean <= kMost ? -1 / std::expm1(log_p) : 0};
}

OfReplies make(const Inputs& in, const Json& json) {
  const double lambda = parse(json).lambda_orpo;
  const Replies replies = replies_of(in, "ORPOLoss");
  const std::vector<double> means = replies.means();
  std::vector<double> margins, slopes;
  for (size_t s = 0; s < means.size(); s += 2) {
    const Term chosen = log_odds(means[s]), rejected = log_odds(means[s + 1]);
    margins.push_back(chosen.value - rejected.value);
    slopes.push_back(chosen.grad / replies.counts[s]);
    slopes.push_back(-rejected.grad / replies.counts[s + 1]);
  }
  OfReplies out;
  add_preferred(margins, slopes, lambda, out);
  add_chosen_nll(replies, 1, out);
  return out;
}

}  // namespace

Loss orpo() {
  return of_pairs<make>({.name = "orpo",
                         .class_name = "ORPOLoss",
                         .extras = {},
                         .check = checked<parse>,
                         .options = described<Options>});
}

}  // namespace twinkle::loss
