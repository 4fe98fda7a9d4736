// Means over all labels since the last reset, of batches with old_values and returns. V is the
// value, R the return. train/value_mean and train/return_mean; train/value_clip_ratio: the share of
// labels at which the clipped term of PPOValueLoss is the greater one, so that they learn nothing;
// train/explained_variance: 1 - var(R - V) / var(R), nan where all R are equal;
// train/advantage_mean and train/advantage_std: of the advantages, or without them of R -
// old_values. Deviations are those of the labels themselves, divided by their number.
// Reads tensors [N]: values, old_values, returns, advantages.
#include <array>
#include <limits>

#include "twinkle/metric/options.h"

namespace twinkle::metric {
namespace {

struct ValueOptions {
  double epsilon = 0.2;

  static constexpr auto fields() {
    return std::tuple{option("epsilon", &ValueOptions::epsilon,
                             Limits{.least = 0, .open = true, .one_of = {"inf"}},
                             "a value's clip around the old one; inf: none")};
  }
};

class PpoValueMetric final : public Metric {
 public:
  explicit PpoValueMetric(const ValueOptions& options) : options_(options) {}

  void accumulate(const Batch& batch) override {
    const at::Tensor values = batch.of_labels("values"), old = batch.of_labels("old_values");
    const at::Tensor returns = batch.of_labels("returns");
    at::Tensor advantages = batch.of_labels("advantages");
    if (!values.defined() || !old.defined() || !returns.defined()) return;
    if (!advantages.defined()) advantages = returns - old;
    const at::Tensor clipped = values.clamp(old - options_.epsilon, old + options_.epsilon);
    const at::Tensor stopped = (clipped - returns).square() > (values - returns).square();
    const at::Tensor parts[] = {values, returns, advantages, stopped.to(at::kDouble)};
    for (size_t i = 0; i < parts_.size(); ++i) parts_[i].push_back(parts[i].clone());
    labels_ += values.numel();
  }

  JsonObject calculate() const override {
    if (labels_ == 0) return {};
    const at::Tensor values = at::cat(parts_[0]), returns = at::cat(parts_[1]);
    const at::Tensor advantages = at::cat(parts_[2]), stopped = at::cat(parts_[3]);
    const auto variance = [](const at::Tensor& of) { return of.var(false).item<double>(); };
    const auto mean = [](const at::Tensor& of) { return of.mean().item<double>(); };
    const double left = variance(returns - values), whole = variance(returns);
    const double unknown = std::numeric_limits<double>::quiet_NaN();
    return JsonObject{{"train/value_mean", mean(values)},
                      {"train/return_mean", mean(returns)},
                      {"train/value_clip_ratio", mean(stopped)},
                      {"train/explained_variance", whole != 0 ? 1 - left / whole : unknown},
                      {"train/advantage_mean", mean(advantages)},
                      {"train/advantage_std", advantages.std(false).item<double>()}};
  }

  void reset() override {
    for (auto& part : parts_) part.clear();
    labels_ = 0;
  }

 private:
  ValueOptions options_;
  std::array<std::vector<at::Tensor>, 4> parts_;  // values, returns, advantages, those clipped
  int64_t labels_ = 0;
};

}  // namespace

Kind ppo_value() {
  return kind_of<PpoValueMetric, ValueOptions>(
      {.class_name = "PPOValueMetric",
       .outputs = {"values"},
       .arguments = {"old_values", "returns", "advantages"}});
}

}  // namespace twinkle::metric
