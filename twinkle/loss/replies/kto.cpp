// Kahneman-Tversky optimization (Ethayarajh et al. 2024, arXiv 2402.01306, eq. 8) of single replies
// that are desirable or not, with TRL's weights: with r = log p - log p of the reference, a reply's
// sums, desirable_weight (1 - sigmoid(beta (r - z))) of a desirable one, undesirable_weight
// (1 - sigmoid(beta (z - r))) of another, the mean over both. z is a constant, the divergence from
// the reference: baseline "mismatched": the mean r of the replies to other prompts in the batch, 0
// if it is below; "zero": 0.
// Extras: desirable per sequence: 1, 0, or -1 of a reply to another prompt, which teaches nothing;
// ref_logps per row, or ref_sums per sequence.
#include <algorithm>
#include <cmath>

#include "twinkle/loss/replies/pair_loss.h"
#include "twinkle/loss/replies/preference.h"

namespace twinkle::loss {
namespace {

struct Options {
  double beta = 0.1, desirable_weight = 1, undesirable_weight = 1;
  std::string baseline = "mismatched";

  static constexpr auto fields() {
    return std::tuple{option("beta", &Options::beta, above(0), "factor of the rewards"),
                      option("desirable_weight", &Options::desirable_weight, at_least(0),
                             "weight of desirable replies"),
                      option("undesirable_weight", &Options::undesirable_weight, at_least(0),
                             "weight of the other replies"),
                      option("baseline", &Options::baseline, one_of("mismatched", "zero"),
                             "z, of replies to other prompts or none")};
  }
};

Options parse(const Json& json) { return parsed<Options>(json, "KTOLoss"); }

double baseline_of(const std::vector<double>& gains, const std::vector<double>& marks,
                   const Options& o) {
  double sum = 0, count = 0;
  for (size_t s = 0; s < gains.size(); ++s) {
    if (marks[s] >= 0) continue;
    sum += gains[s];
    ++count;
  }
  if (o.baseline == "zero") {
    require(count == 0, Code::kInvalid,
            "loss: KTOLoss has baseline 'zero', but desirable is None "
            "of ",
            count, " sequences: leave them out");
    return 0;
  }
  require(count > 0, Code::kInvalid,
          "loss: KTOLoss needs replies to other prompts, whose desirable is None, to estimate its "
          "baseline: add some to each batch, or set baseline='zero'");
  return std::max(0.0, sum / count);
}

OfReplies make(const Inputs& in, const Json& json) {
  const Options o = parse(json);
  const Replies replies = replies_of(in, "KTOLoss", false);
  OfReplies out{.grad = std::vector<double>(replies.sums.size())};
  if (replies.sums.empty()) return out;
  const std::vector<double> marks = doubles(in.extras.at("desirable")),
                            reference = reference_sums(in, "KTOLoss");
  std::vector<double> gains;
  for (size_t s = 0; s < marks.size(); ++s) gains.push_back(replies.sums[s] - reference[s]);
  const double z = baseline_of(gains, marks, o);
  const auto count =
      static_cast<double>(std::ranges::count_if(marks, [](double m) { return m >= 0; }));
  for (size_t s = 0; s < marks.size(); ++s) {
    if (marks[s] < 0) continue;
    const double sign = marks[s] > 0 ? 1 : -1, reward = sign * o.beta * (gains[s] - z),
                 weight = (marks[s] > 0 ? o.desirable_weight : o.undesirable_weight) / count;
    out.loss += weight * sigmoid(-reward);
    out.grad[s] = -weight * sign * o.beta * sigmoid(reward) * sigmoid(-reward);
  }
  return out;
}

}  // namespace

Loss kto() {
  return of_pairs<make>({.name = "kto",
                         .class_name = "KTOLoss",
                         .extras = {{.name = "desirable", .per_sequence = true},
                                    {.name = "ref_logps", .optional = true},
                                    {.name = "ref_sums", .per_sequence = true, .optional = true}},
                         .check = checked<parse>,
                         .options = described<Options>});
}

}  // namespace twinkle::loss
