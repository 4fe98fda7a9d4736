// loss: the mean per token (of losses that are means: per batch); num_tokens: labels that it is
// over; grad_norm: of the last step, before clipping.
// Reads numbers: loss and num_tokens; loss_tokens, what the loss is a sum over; grad_norm. Without
// loss_tokens: num_tokens, or the labels, where loss_reduction is "sum", and 1 otherwise.
#include "twinkle/metric/means.h"
#include "twinkle/metric/options.h"

namespace twinkle::metric {
namespace {

class LossMetric final : public Metric {
 public:
  explicit LossMetric(const NoOptions&) {}

  void accumulate(const Batch& batch) override {
    const std::optional<double> loss = batch.number("loss");
    if (!loss) return;
    const auto num_tokens = static_cast<int64_t>(batch.number("num_tokens").value_or(0));
    loss_.add("loss", *loss, tokens_of(batch, num_tokens));
    num_tokens_ += num_tokens;
    if (const auto norm = batch.number("grad_norm")) grad_norm_ = norm;
  }

  void on_step(const Step& step) override { grad_norm_ = step.grad_norm; }

  JsonObject calculate() const override {
    JsonObject out = loss_.told();
    if (!out.empty()) out["num_tokens"] = num_tokens_;
    if (grad_norm_) out["grad_norm"] = *grad_norm_;
    return out;
  }

  void reset() override {
    loss_.clear();
    num_tokens_ = 0;
  }

 private:
  static double tokens_of(const Batch& batch, int64_t num_tokens) {
    if (const auto tokens = batch.number("loss_tokens")) return *tokens;
    const Json* reduction = batch.numbers.if_contains("loss_reduction");
    if (!reduction || *reduction != Json("sum")) return 1;
    if (num_tokens != 0) return static_cast<double>(num_tokens);
    const at::Tensor labels = batch.tensor("labels");
    require(labels.defined(), Code::kInvalid,
            "metric: LossMetric of a loss that is a sum needs num_tokens, or labels");
    return labels.ge(0).sum().item<double>();
  }

  Means loss_;
  int64_t num_tokens_ = 0;
  std::optional<double> grad_norm_;
};

}  // namespace

Kind mean_loss() {
  return kind_of<LossMetric>(
      {.class_name = "LossMetric",
       .inputs = {"labels"},
       .numbers = {"loss", "num_tokens", "loss_tokens", "loss_reduction", "grad_norm"}});
}

}  // namespace twinkle::metric
