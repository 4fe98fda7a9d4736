// accuracy: the share of labels that are the model's likeliest token; correct_tokens and
// total_tokens: what it is a share of. Nothing where there are no labels.
// Reads tensors of one shape, whatever it is: labels, predictions, and completion_mask where only
// some labels are to count.
#include "twinkle/metric/options.h"

namespace twinkle::metric {
namespace {

constexpr double kIgnored = -100;  // the label of what is not learnt

class AccuracyMetric final : public Metric {
 public:
  explicit AccuracyMetric(const NoOptions&) {}

  void accumulate(const Batch& batch) override {
    const at::Tensor chosen = batch.tensor("predictions"), labels = batch.tensor("labels");
    if (!chosen.defined()) return;
    require(labels.defined(), Code::kInvalid,
            "metric: Accuracy needs labels: pass one dict of inputs that has them, not a list");
    require(chosen.sizes() == labels.sizes(), Code::kInvalid,
            "metric: Accuracy has predictions of the shape ", chosen.sizes(), ", but labels of ",
            labels.sizes(), ": there must be one for each label");
    at::Tensor counted = labels != kIgnored;
    if (const at::Tensor mask = batch.tensor("completion_mask"); mask.defined())
      counted = counted.logical_and(mask != 0);
    correct_ += counted.logical_and(chosen == labels).sum().item<int64_t>();
    total_ += counted.sum().item<int64_t>();
  }

  JsonObject calculate() const override {
    if (total_ == 0) return {};
    const double share = static_cast<double>(correct_) / static_cast<double>(total_);
    return JsonObject{{"accuracy", share}, {"correct_tokens", correct_}, {"total_tokens", total_}};
  }

  void reset() override { correct_ = total_ = 0; }

 private:
  int64_t correct_ = 0, total_ = 0;
};

}  // namespace

Kind accuracy() {
  return kind_of<AccuracyMetric>({.class_name = "Accuracy",
                                  .inputs = {"labels", "completion_mask"},
                                  .outputs = {"predictions"}});
}

}  // namespace twinkle::metric
