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

constexpr std::string_view kName = "DPOLoss";

struct Options {
  double beta, smooth, sft_weight;
  std::string type;
  bool reference_free;
};

Options parse(const Json& json) {
  check_known(json, kName,
              {"beta", "label_smoothing", "loss_type", "sft_weight", "reference_free"});
  const Options o{
      coefficient(json, kName, "beta", 0.1, true), coefficient(json, kName, "label_smoothing", 0),
      coefficient(json, kName, "sft_weight", 0), get_or<std::string>(json, "loss_type", "sigmoid"),
      get_or<bool>(json, "reference_free", false)};
  require(o.type == "sigmoid" || o.type == "hinge" || o.type == "ipo" || o.type == "kto_pair",
          Code::kInvalid, "loss: loss_type of DPOLoss is '", o.type,
          "', it must be 'sigmoid', 'hinge', 'ipo' or 'kto_pair'");
  require(o.smooth <= 0.5 && (o.smooth == 0 || o.type == "sigmoid"), Code::kInvalid,
          "loss: label_smoothing of DPOLoss is ", o.smooth,
          ", it must be at most 0.5, and 0 but for loss_type 'sigmoid'");
  return o;
}

std::vector<double> reference_of(const Inputs& in, const Options& o) {
  const size_t n = in.cu_seqlens.size() - 1;
  if (o.reference_free) return std::vector<double>(n);
  require(
      !in.extras.contains("ref_sums") || !in.extras.contains("ref_logps"), Code::kInvalid,
      "loss: DPOLoss has both 'ref_logps' and 'ref_sums', which mean the same; pass one of them");
  if (in.extras.contains("ref_sums")) return doubles(in.extras.at("ref_sums"));
  require(in.extras.contains("ref_logps"), Code::kInvalid,
          "loss: DPOLoss needs 'ref_logps' or 'ref_sums', pass one with the batch");
  const std::vector<double> of_rows = doubles(in.extras.at("ref_logps")),
                            weights = doubles(in.weights);
  std::vector<double> out(n);
  for (size_t s = 0; s < n; ++s)
    for (auto t = static_cast<size_t>(in.cu_seqlens[s]);
         t < static_cast<size_t>(in.cu_seqlens[s + 1]); ++t)
      if (weights[t] != 0) out[s] += of_rows[t];
  return out;
}

// A pair's loss, and its derivatives by the two rewards beta Gw and beta Gl.
struct PairLoss {
  double value, chosen, rejected;
};
PairLoss of_pair(const Options& o, double chosen, double rejected) {
  const double m = chosen - rejected, s = o.smooth;
  if (o.type == "kto_pair") {
    const double w = sigmoid(chosen), l = sigmoid(rejected);
    return {1 - w + l, -w * sigmoid(-chosen), l * sigmoid(-rejected)};
  }
  Term t;
  if (o.type == "sigmoid")
    t = {-(1 - s) * log_sigmoid(m) - s * log_sigmoid(-m), -(1 - s) * sigmoid(-m) + s * sigmoid(m)};
  else if (o.type == "hinge")
    t = {std::max(0.0, 1 - m), m < 1 ? -1.0 : 0.0};
  else
    t = {(m - 1 / (2 * o.beta)) * (m - 1 / (2 * o.beta)), 2 * (m - 1 / (2 * o.beta))};
  return {t.value, t.grad, -t.grad};
}

OfReplies make(const Inputs& in, const Json& json) {
  const Options o = parse(json);
  const Replies replies = replies_of(in, kName);
  const std::vector<double> reference = reference_of(in, o);
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
                         .class_name = kName,
                         .extras = {{.name = "ref_logps", .optional = true},
                                    {.name = "ref_sums", .per_sequence = true, .optional = true}},
                         .check = [](const Json& json) { parse(json); }});
}

}  // namespace twinkle::loss
