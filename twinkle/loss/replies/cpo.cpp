// Contrastive preference optimization (Xu et al. 2024, arXiv 2401.08417, eq. 5): -log sigmoid(beta
// (lw - ll)), the mean over pairs, and bc_coef times the chosen replies' -log p, a mean over their
// rows. Options: beta (0.1), bc_coef (1). No extras.
#include "twinkle/loss/replies/preference.h"

namespace twinkle::loss {
namespace {

struct Options {
  double beta = 0.1, bc_coef = 1;

  static constexpr auto fields() {
    return std::tuple{
        option("beta", &Options::beta, above(0), "factor of the margin"),
        option("bc_coef", &Options::bc_coef, at_least(0), "weight of the chosen replies' -log p")};
  }
};

Options parse(const Json& json) { return parsed<Options>(json, "CPOLoss"); }

OfReplies make(const Inputs& in, const Json& json) {
  const Options o = parse(json);
  const Replies replies = replies_of(in, "CPOLoss");
  std::vector<double> margins, slopes;
  for (size_t s = 0; s < replies.sums.size(); s += 2) {
    margins.push_back(o.beta * (replies.sums[s] - replies.sums[s + 1]));
    slopes.insert(slopes.end(), {o.beta, -o.beta});
  }
  OfReplies out;
  add_preferred(margins, slopes, 1, out);
  add_chosen_nll(replies, o.bc_coef, out);
  return out;
}

}  // namespace

Loss cpo() {
  return of_pairs<make>({.name = "cpo",
                         .class_name = "CPOLoss",
                         .extras = {},
                         .check = checked<parse>,
                         .options = described<Options>});
}

}  // namespace twinkle::loss
