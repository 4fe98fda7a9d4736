// Simple preference optimization (Meng et al. 2024, arXiv 2405.14734, eq. 6): -log sigmoid(beta (lw
// / |w| - ll / |l|) - gamma), the mean over pairs. Options: beta (2.5), gamma (0.5). No extras.
#include <cmath>

#include "twinkle/loss/options.h"
#include "twinkle/loss/replies/preference.h"

namespace twinkle::loss {
namespace {

struct Options {
  double beta, gamma;
};

Options parse(const Json& json) {
  check_known(json, "SimPOLoss", {"beta", "gamma"});
  const Options o{coefficient(json, "SimPOLoss", "beta", 2.5, true),
                  get_or<double>(json, "gamma", 0.5)};
  require(std::isfinite(o.gamma), Code::kInvalid, "loss: gamma of SimPOLoss is ", o.gamma,
          ", it must be finite");
  return o;
}

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
  return of_pairs<make>(
      {.name = "simpo", .class_name = "SimPOLoss", .extras = {}, .check = checked<parse>});
}

}  // namespace twinkle::loss
