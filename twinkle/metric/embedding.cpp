// pos_sim, pos_sim_min, pos_sim_max: the cosine similarities of anchors to their positives;
// neg_sim: the mean of those to the positives of other groups of the same batch; loss: the mean of
// the batches'; grad_norm: of the last step, before clipping.
// Reads tensors: embeddings [B, D], or [B, L, D], whose first positions are taken; anchors [G], the
// sequences that begin a group, each with its positive next. Number: loss.
#include <algorithm>
#include <limits>

#include "twinkle/metric/means.h"
#include "twinkle/metric/options.h"

namespace twinkle::metric {
namespace {

constexpr double kFar = std::numeric_limits<double>::infinity();

class EmbeddingMetric final : public Metric {
 public:
  explicit EmbeddingMetric(const NoOptions&) {}

  void accumulate(const Batch& batch) override {
    at::Tensor rows = batch.tensor("embeddings");
    const at::Tensor anchors = batch.tensor("anchors");
    if (!rows.defined() || !anchors.defined()) return;
    if (rows.dim() == 3) rows = rows.select(1, 0);
    rows = rows / rows.norm(2, {-1}, true).clamp_min(1e-12);
    const at::Tensor first = anchors.to(at::kLong);
    const at::Tensor similarities =
        rows.index_select(0, first).matmul(rows.index_select(0, first + 1).t());
    const at::Tensor own = similarities.diagonal();
    const at::Tensor other = at::eye(first.numel(), at::kBool).logical_not();
    means_.add("pos_sim", own);
    means_.add("neg_sim", similarities.masked_select(other));
    least_ = std::min(least_, own.min().item<double>());
    greatest_ = std::max(greatest_, own.max().item<double>());
    if (const auto loss = batch.number("loss")) means_.add("loss", *loss, 1);
  }

  void on_step(const Step& step) override { grad_norm_ = step.grad_norm; }

  JsonObject calculate() const override {
    JsonObject out = means_.told();
    const bool is_empty = out.empty();
    if (grad_norm_) out["grad_norm"] = *grad_norm_;
    if (is_empty) return out;
    out["pos_sim_min"] = least_;
    out["pos_sim_max"] = greatest_;
    return out;
  }

  void reset() override {
    means_.clear();
    least_ = kFar;
    greatest_ = -kFar;
  }

 private:
  Means means_;
  double least_ = kFar, greatest_ = -kFar;
  std::optional<double> grad_norm_;
};

}  // namespace

Kind embedding() {
  return kind_of<EmbeddingMetric>({.class_name = "EmbeddingMetric",
                                   .inputs = {"anchors"},
                                   .outputs = {"embeddings"},
                                   .numbers = {"loss"}});
}

}  // namespace twinkle::metric
