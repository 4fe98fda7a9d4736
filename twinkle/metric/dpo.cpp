// Means over pairs of a chosen and a rejected reply, adjacent in a batch. logps/chosen and
// logps/rejected: the sums of log p over a reply's labels. With a reference also logps/ref_chosen
// and logps/ref_rejected; rewards/chosen and rewards/rejected, beta times what a reply gained over
// the reference; rewards/margins, their difference; rewards/accuracies, the percentage of pairs
// whose margin is above 0.
// Reads tensors: logps [N]; ref_sums [S], the reference's sums.
#include "twinkle/metric/means.h"
#include "twinkle/metric/options.h"

namespace twinkle::metric {
namespace {

struct DpoOptions {
  double beta = 0.1;

  static constexpr auto fields() {
    return std::tuple{option("beta", &DpoOptions::beta, loss::above(0), "factor of the rewards")};
  }
};

class DpoMetric final : public Metric {
 public:
  explicit DpoMetric(const DpoOptions& options) : options_(options) {}

  void accumulate(const Batch& batch) override {
    const at::Tensor logps = batch.of_labels("logps"), of_ref = batch.of_sequences("ref_sums");
    if (!logps.defined()) return;
    require(batch.counts.size() % 2 == 0, Code::kInvalid, "metric: DPOMetric needs pairs, but ",
            "there are ", batch.counts.size(), " sequences: pass an even number of them");
    const at::Tensor sums = batch.sums(logps);
    add_pairs("logps/", sums);
    if (!of_ref.defined()) return;
    add_pairs("logps/ref_", of_ref);
    const at::Tensor rewards = options_.beta * (sums - of_ref);
    add_pairs("rewards/", rewards);
    const at::Tensor pairs = rewards.view({-1, 2}),
                     margins = pairs.select(1, 0) - pairs.select(1, 1);
    means_.add("rewards/margins", margins);
    means_.add("rewards/accuracies", 100.0 * (margins > 0));
  }

  JsonObject calculate() const override { return means_.told(); }
  void reset() override { means_.clear(); }

 private:
  void add_pairs(const std::string& prefix, const at::Tensor& of_replies) {
    const at::Tensor pairs = of_replies.view({-1, 2});
    means_.add(prefix + "chosen", pairs.select(1, 0));
    means_.add(prefix + "rejected", pairs.select(1, 1));
  }

  DpoOptions options_;
  Means means_;
};

}  // namespace

Kind dpo() {
  return kind_of<DpoMetric, DpoOptions>(
      {.class_name = "DPOMetric", .outputs = {"logps"}, .arguments = {"ref_sums"}});
}

}  // namespace twinkle::metric
