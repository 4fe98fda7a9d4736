// The loss of a reward model (Bradley and Terry 1952; Ouyang et al. 2022, arXiv 2203.02155, eq. 1;
// Touvron et al. 2023, arXiv 2307.09288, eq. 2): with the score r that each sequence has,
// -log sigmoid(r of the chosen reply - r of the rejected one - margin), the mean over pairs, which
// follow each other; and center_rewards_coefficient (0) times the mean of (both scores)^2
// (Eisenstein et al. 2023, arXiv 2312.09244), which keeps scores near 0.
// Extra: margin (0) per sequence, of which the chosen one's counts.
#include "twinkle/loss/replies/pair_loss.h"
#include "twinkle/loss/rows.h"

namespace twinkle::loss {
namespace {

struct Options {
  double center = 0;

  static constexpr auto fields() {
    return std::tuple{option("center_rewards_coefficient", &Options::center, at_least(0),
                             "weight of the squared sum of a pair's scores")};
  }
};

Options parse(const Json& json) { return parsed<Options>(json, "RewardLoss"); }

Output run_pairs(const Inputs& in, const Json& json) {
  const Options o = parse(json);
  const std::vector<double> scores = doubles(in.logprobs);
  const size_t n = in.cu_seqlens.size() - 1;
  require(scores.size() == n, Code::kInvalid,
          "loss: RewardLoss needs one score of a sequence, but ", n, " sequences have ",
          scores.size(), ": give the adapter a head of num_labels 1");
  require(n % 2 == 0, Code::kInvalid,
          "loss: RewardLoss needs pairs, each chosen reply followed by its rejected one, but there "
          "are ",
          n, " sequences: pass an even number of them");
  const std::vector<double> margins = doubles(in, "margin", 0);
  std::vector<double> grad(n);
  Output out{.num_tokens = n > 0 ? 1.0 : 0.0};
  const double each = 2 / static_cast<double>(n);
  for (size_t s = 0; s < n; s += 2) {
    const double sum = scores[s] + scores[s + 1];
    const Term of_pair = of_sigmoid(scores[s] - scores[s + 1] - margins[s]);
    out.loss += each * (of_pair.value + o.center * sum * sum);
    grad[s] = each * (of_pair.grad + 2 * o.center * sum);
    grad[s + 1] = each * (-of_pair.grad + 2 * o.center * sum);
  }
  out.grad = gradient_of(in, grad);
  return out;
}

}  // namespace

Loss reward() {
  return {.name = "reward",
          .class_name = "RewardLoss",
          .extras = {{.name = "margin", .per_sequence = true, .optional = true}},
          .check = checked<parse>,
          .options = described<Options>,
          .run = run_pairs,
          .doubles = true,
          .of_labels = true};
}

}  // namespace twinkle::loss
