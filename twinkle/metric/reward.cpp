// Means over pairs of a chosen and a rejected reply, adjacent in a batch, of the scores that a head
// of one label gives: rewards/chosen, rewards/rejected, rewards/margins, their difference, and
// rewards/accuracies, the percentage of pairs whose margin is above 0.
// Reads the tensor logits [B, 1]; of another shape it counts nothing.
#include "twinkle/metric/means.h"
#include "twinkle/metric/options.h"

namespace twinkle::metric {
namespace {

class RewardMetric final : public Metric {
 public:
  explicit RewardMetric(const NoOptions&) {}

  void accumulate(const Batch& batch) override {
    const at::Tensor scores = batch.tensor("logits");
    if (!scores.defined() || scores.dim() != 2 || scores.size(1) != 1) return;
    require(scores.size(0) % 2 == 0, Code::kInvalid, "metric: RewardMetric needs pairs, but there ",
            "are ", scores.size(0), " sequences: pass an even number of them");
    const at::Tensor pairs = scores.reshape({-1, 2});
    const at::Tensor chosen = pairs.select(1, 0), rejected = pairs.select(1, 1);
    means_.add("rewards/chosen", chosen);
    means_.add("rewards/rejected", rejected);
    means_.add("rewards/margins", chosen - rejected);
    means_.add("rewards/accuracies", 100.0 * (chosen > rejected));
  }

  JsonObject calculate() const override { return means_.told(); }
  void reset() override { means_.clear(); }

 private:
  Means means_;
};

}  // namespace

Kind reward() {
  return kind_of<RewardMetric>({.class_name = "RewardMetric", .outputs = {"logits"}});
}

}  // namespace twinkle::metric
