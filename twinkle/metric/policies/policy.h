// Shared by the metrics of policies. lp is log p of a label, in nats, d is lp - old_logps, A its
// advantage; means are over labels.
// mean_new_logp: of lp; policy_confidence: the exponential of that mean; entropy: of the entropies.
// With old_logps: mean_old_logp; logp_diff_mean: of d; approx_kl: of exp(d) - d - 1 (Schulman's
// k3); token_kl_max and token_ratio_max: the greatest of these, and of exp(d). With advantages,
// too: clip_ratio_low and clip_ratio_high, the shares below and above the clip; clip_ratio: their
// sum. All names begin with "train/". With top_k_kl, _high_kl_records: of each batch the labels
// with that many greatest positive k3, objects of gsi (the sequence since the last reset), pos,
// token_id, kl, ratio, logp_new and logp_old.
// Reads tensors [N]: logps; entropies, old_logps, advantages where they are there; for records
// labels and positions, where each label is in its sequence.
#pragma once
#include <optional>
#include <tuple>
#include <vector>

#include "twinkle/metric/means.h"
#include "twinkle/metric/options.h"

namespace twinkle::metric {

struct PolicyOptions {
  double temperature = 1;
  double epsilon = 0.2;
  double epsilon_high = -1;  // below 0: epsilon
  int64_t top_k_kl = 0;

  double high() const { return epsilon_high < 0 ? epsilon : epsilon_high; }
  static constexpr auto fields() {
    return std::tuple{
        option("temperature", &PolicyOptions::temperature, loss::above(0),
               "factor of the means of log p, which undoes that of the logits"),
        option("epsilon", &PolicyOptions::epsilon, at_least(0), "the ratio's clip below 1"),
        option("epsilon_high", &PolicyOptions::epsilon_high, at_least(0),
               "its clip above 1 [epsilon]"),
        option("top_k_kl", &PolicyOptions::top_k_kl, at_least(0), "records of a batch")};
  }
};

// Bools: each item that is clipped on its own is below, or above, the clip.
struct Clipped {
  at::Tensor low, high;
};
// exp(d) < 1 - epsilon and A < 0, and exp(d) > 1 + epsilon_high and A > 0.
Clipped beyond(const PolicyOptions& options, const at::Tensor& d, const at::Tensor& advantages);
// d and advantages: [N].
using Clip = Clipped (*)(const PolicyOptions& options, const Batch& batch, const at::Tensor& d,
                         const at::Tensor& advantages);

class PolicyMetric : public Metric {
 public:
  PolicyMetric(const PolicyOptions& options, Clip clip) : options_(options), clip_(clip) {}

  void accumulate(const Batch& batch) override;
  JsonObject calculate() const override;
  void reset() override;

 private:
  struct Ratios;
  void compare(const Batch& batch, const Ratios& ratios);
  void record(const Batch& batch, const Ratios& ratios);

  PolicyOptions options_;
  Clip clip_;
  Means means_;
  std::optional<double> kl_max_, ratio_max_;
  JsonArray records_;
  int64_t sequences_ = 0;  // since the last reset
};

// A PolicyMetric of one Clip.
template <Clip clip>
Kind policy_kind(std::string_view class_name) {
  struct Of final : PolicyMetric {
    explicit Of(const PolicyOptions& options) : PolicyMetric(options, clip) {}
  };
  return kind_of<Of, PolicyOptions>({.class_name = class_name,
                                     .inputs = {"labels", "positions"},
                                     .outputs = {"logps", "entropies"},
                                     .arguments = {"old_logps", "advantages"}});
}

}  // namespace twinkle::metric
