#include "twinkle/metric/policies/policy.h"

#include <algorithm>
#include <cmath>

namespace twinkle::metric {

Clipped beyond(const PolicyOptions& options, const at::Tensor& d, const at::Tensor& advantages) {
  const at::Tensor ratio = d.exp();
  return {.low = (ratio < 1 - options.epsilon).logical_and(advantages < 0),
          .high = (ratio > 1 + options.high()).logical_and(advantages > 0)};
}

struct PolicyMetric::Ratios {
  at::Tensor lp, old, d, kl;  // [N]
};

void PolicyMetric::accumulate(const Batch& batch) {
  const at::Tensor lp = batch.of_labels("logps"), entropies = batch.of_labels("entropies");
  const at::Tensor old = batch.of_labels("old_logps"), advantages = batch.of_labels("advantages");
  if (!lp.defined()) return;
  sequences_ += static_cast<int64_t>(batch.counts.size());
  if (lp.numel() == 0) return;
  means_.add("mean_new_logp", options_.temperature * lp);
  if (entropies.defined()) means_.add("entropy", entropies);
  if (!old.defined()) return;
  means_.add("mean_old_logp", options_.temperature * old);
  const at::Tensor d = lp - old;
  compare(batch, {.lp = lp, .old = old, .d = d, .kl = d.exp() - d - 1});
  if (!advantages.defined()) return;
  const Clipped clipped = clip_(options_, batch, d, advantages);
  means_.add("clip_ratio_low", clipped.low);
  means_.add("clip_ratio_high", clipped.high);
}

void PolicyMetric::compare(const Batch& batch, const Ratios& ratios) {
  means_.add("logp_diff_mean", ratios.d);
  means_.add("approx_kl", ratios.kl);
  kl_max_ = std::max(kl_max_.value_or(0), ratios.kl.max().item<double>());
  ratio_max_ = std::max(ratio_max_.value_or(0), ratios.d.exp().max().item<double>());
  record(batch, ratios);
}

void PolicyMetric::record(const Batch& batch, const Ratios& ratios) {
  const int64_t count = std::min(options_.top_k_kl, (ratios.kl > 0).sum().item<int64_t>());
  const at::Tensor labels = batch.of_labels("labels"), positions = batch.of_labels("positions");
  if (count == 0 || !labels.defined() || !positions.defined()) return;
  const at::Tensor greatest = std::get<1>(ratios.kl.topk(count)), ratio = ratios.d.exp();
  const auto number = [](const at::Tensor& of, int64_t i) { return of[i].item<double>(); };
  const auto whole = [](const at::Tensor& of, int64_t i) { return of[i].item().toLong(); };
  for (int64_t k = 0; k < count; ++k) {
    const auto i = greatest[k].item<int64_t>();
    int64_t sequence = 0;
    for (int64_t end = batch.counts[0]; end <= i;) end += batch.counts[++sequence];
    const int64_t before = sequences_ - static_cast<int64_t>(batch.counts.size());
    records_.push_back(JsonObject{{"gsi", before + sequence},
                                  {"pos", whole(positions, i)},
                                  {"token_id", whole(labels, i)},
                                  {"kl", number(ratios.kl, i)},
                                  {"ratio", number(ratio, i)},
                                  {"logp_new", number(ratios.lp, i)},
                                  {"logp_old", number(ratios.old, i)}});
  }
}

JsonObject PolicyMetric::calculate() const {
  JsonObject means = means_.told(), out;
  const auto mean = [&means](const char* name) { return means.at(name).get_double(); };
  if (means.contains("mean_new_logp")) means["policy_confidence"] = std::exp(mean("mean_new_logp"));
  if (means.contains("clip_ratio_low"))
    means["clip_ratio"] = mean("clip_ratio_low") + mean("clip_ratio_high");
  if (kl_max_) means["token_kl_max"] = *kl_max_;
  if (ratio_max_) means["token_ratio_max"] = *ratio_max_;
  for (const auto& [name, value] : means)
    out[std::string("train/").append(std::string_view(name))] = value;
  if (!records_.empty()) out["_high_kl_records"] = records_;
  return out;
}

void PolicyMetric::reset() {
  means_.clear();
  kl_max_ = ratio_max_ = {};
  records_.clear();
  sequences_ = 0;
}

}  // namespace twinkle::metric
