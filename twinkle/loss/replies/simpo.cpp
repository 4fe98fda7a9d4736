// Simple preference optimization (Meng et al. 2024, arXiv 2405.14734, eq. 6): -log sigmoid(beta (lw
// / |w| - ll / |l|) - gamma), the mean over pairs. Options: beta (2.5), gamma (0.5). No extras.
#include "twinkle/loss/replies/preference.h"

namespace twinkle::loss {
namespace {

struct Options {
  double beta = 2.5, gamma = 0.5;

  static constexpr auto fields() {
    return std::tuple{option("beta", &Options::beta, above(0), "factor of the margin"),
                      option("gamma", &Options::gamma, any(), "margin to exceed")};
  }
};

Options parse(const Json& json) { return parsed<Options>(json, "SimPOLoss"); }

OfReplies make(const Inputs& in, const Json& json) {
  const Options o = parse(json);
  const Replies replies = replies_of(in, "SimPOLoss");
  const std::vector<double> means = replies.means();
  std::vector<double> margins, slopes;
  for (size_t s = 0; s < means.size(); s += 2) {
    margins.push_back(o.beta * (means[s] - means[s + 1]) - o.gamma);
    slopes.push_back(o.beta / replies.counts[s]);
    slopes.push_back(-o.beta / replies.counts[s + 1]);
  }
  OfReplies out;
  add_preferred(margins, slopes, 1, out);
  return out;
}

}  // namespace

Loss simpo() {
  return of_pairs<make>({.name = "simpo",
                         .class_name = "SimPOLoss",
                         .extras = {},
                         .check = checked<parse>,
                         .options = described<Options>});
}

}  // namespace twinkle::loss
