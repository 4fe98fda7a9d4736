// Direct preference optimization (Rafailov et al. 2023, arXiv 2305.18290, eq. 7), the mean over
// pairs of a loss of their rewards, a reply's being beta (log p - log p of the reference). It is
// loss_type of pair_loss.h: "sigmoid", "hinge", "ipo" or "kto_pair".
// Options: beta (0.1), label_smoothing (0, at most 0.5), loss_type, sft_weight (0) of the chosen
// replies' -log p, reference_free (false). Extras: ref_logps per row, or ref_sums per sequence.
#include "twinkle/loss/replies/pair_loss.h"
#include "twinkle/loss/replies/preference.h"

namespace twinkle::loss {
namespace {

struct Options {
  PairOptions pair;
  bool reference_free = false;
  double sft_weight = 0;

  static constexpr auto fields() {
    return std::tuple{
        group("pair", &Options::pair),
        option("reference_free", &Options::reference_free, any(), "no reference model"),
        option("sft_weight", &Options::sft_weight, at_least(0),
               "weight of the chosen replies' -log p")};
  }
};

Options parse(const Json& json) {
  auto o = parsed<Options>(json, "DPOLoss");
  require(o.pair.smooth == 0 || o.pair.type == "sigmoid", Code::kInvalid,
          "loss: label_smoothing is ", o.pair.smooth, ", but loss_type '", o.pair.type,
          "' has none: leave it out, or use 'sigmoid'");
  return o;
}

OfReplies make(const Inputs& in, const Json& json) {
  const Options o = parse(json);
  const Replies replies = replies_of(in, "DPOLoss");
  const std::vector<double> reference =
      o.reference_free ? std::vector<double>(replies.sums.size()) : reference_sums(in, "DPOLoss");
  const double beta = o.pair.beta, pairs = static_cast<double>(replies.num_pairs());
  OfReplies out;
  for (size_t s = 0; s < reference.size(); s += 2) {
    const auto reward = [&](size_t i) { return beta * (replies.sums[i] - reference[i]); };
    const PairLoss pair = of_rewards(o.pair, reward(s), reward(s + 1));
    out.loss += pair.value / pairs;
    out.grad.insert(out.grad.end(), {pair.chosen * beta / pairs, pair.rejected * beta / pairs});
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
                         .check = checked<parse>,
                         .options = described<Options>});
}

}  // namespace twinkle::loss
