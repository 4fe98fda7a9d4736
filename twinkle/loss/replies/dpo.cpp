// Direct preference optimization (Rafailov et al. 2023, arXiv 2305.18290, eq. 7), the mean over
// pairs. With the gains G = (log p) - (log p of the reference) of each reply, and M = beta (Gw -
// Gl), loss_type "sigmoid": -(1 - s) log sigmoid(M) - s log sigmoid(-M), s being label_smoothing;
// "hinge": max(0, 1 - M) (arXiv 2305.10425); "ipo": (M - 1 / (2 beta))^2; "kto_pair": 1 -
// sigmoid(beta Gw) + sigmoid(beta Gl) (arXiv 2402.01306).
// Options: beta (0.1), label_smoothing (0, at most 0.5), loss_type, sft_weight (0) of the chosen
// replies' -log p, reference_free (false). Extras: ref_logps per row, or ref_sums per sequence.
#include <algorithm>
#include <string>

#include "twinkle/loss/options.h"
#include "twinkle/loss/replies/preference.h"

namespace twinkle::loss {
namespace {

struct Options {
  double beta, smooth, sft_weight;
  std::string type;
  bool reference_free;
};

Options parse(const Json& json) {
  constexpr std::string_view kName = "DPOLoss";
  check_known(json, kName,
              {"beta", "label_smoothing", "loss_type", "sft_weight", "reference_free"});
  const Options o{coefficient(json, kName, "beta", 0.1, true),
                  coefficient(json, kName, "label_smoothing", 0),
                  coefficient(json, kName, "sft_weight", 0),
                  choice(json, kName, "loss_type", {"sigmoid", "hinge", "ipo", "kto_pair"}),
                  get_or<bool>(json, "reference_free", false)};
  require(o.smooth <= 0.5 && (o.smooth == 0 || o.type == "sigmoid"), Code::kInvalid,
          "loss: label_smoothing of DPOLoss is ", o.smooth,
          ", it must be at most 0.5, and 0 but for loss_type 'sigmoid'");
  return o;
}

// A pair's loss, and its derivatives by the two rewards beta Gw and beta Gl.
struct PairLoss {
  double value, chosen, rejected;
};
PairLoss of_pair(const Options& o, double chosen, double rejected) {
  const double m = chosen - rejected, s = o.smooth, gap = m - 1 / (2 * o.beta);
  const auto of_margin = [](double value, double grad) -> PairLoss { return {value, grad, -grad}; };
  if (o.type == "hinge") return of_margin(std::max(0.0, 1 - m), m < 1 ? -1.0 : 0.0);
  if (o.type == "ipo") return of_margin(gap * gap, 2 * gap);
  if (o.type == "sigmoid")
    return of_margin(-(1 - s) * log_sigmoid(m) - s * log_sigmoid(-m),
                     -(1 - s) * sigmoid(-m) + s * sigmoid(m));
  const double w = sigmoid(chosen), l = sigmoid(rejected);
  return {1 - w + l, -w * sigmoid(-chosen), l * sigmoid(-rejected)};
}

OfReplies make(const Inputs& in, const Json& json) {
  const Options o = parse(json);
  const Replies replies = replies_of(in, "DPOLoss");
  const std::vector<double> reference =
      o.reference_free ? std::vector<double>(replies.sums.size()) : reference_sums(in, "DPOLoss");
  const auto pairs = static_cast<double>(replies.num_pairs());
  OfReplies out;
  for (size_t s = 0; s < reference.size(); s += 2) {
    const auto reward = [&](size_t i) { return o.beta * (replies.sums[i] - reference[i]); };
    const PairLoss pair = of_pair(o, reward(s), reward(s + 1));
    out.loss += pair.value / pairs;
    out.grad.push_back(pair.chosen * o.beta / pairs);
    out.grad.push_back(pair.rejected * o.beta / pairs);
  }
  add_chosen_nll(replies, o.sft_weight, out);
  return out;
}

}  // namespace

Loss dpo() {
  return of_pairs<make>({.name = "dpo",
                         .class_name = "DPOLoss",
                         .extras = {{.name = "ref_logps", .optional = true},
                                    {.name = "ref_sums", .per_sequence = true, .optional = true}},
                         .check = [](const Json& json) { parse(json); }});
}

}  // namespace twinkle::loss
