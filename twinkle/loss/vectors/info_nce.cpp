// InfoNCE (van den Oord et al. 2018, arXiv 1807.03748, eq. 4) of embeddings [B, D]: -log softmax of
// an anchor's similarity to its positive, among those to all documents (positives and negatives),
// divided by temperature; the mean over groups, each an anchor, its positive and its negatives.
// Extra: anchors [G] int64, ascending from 0, where each group begins.
// Options: temperature (0.1); use_batch (true): documents of all groups count, else those of the
// anchor's own; hard_negatives: how many each group has, more are cut off, fewer repeated in turn;
// mask_fake_negative: documents whose similarity exceeds the positive's by more than
// fake_neg_margin (0.1) are left out; include_qq: other anchors count as documents, too;
// include_dd: and the positive's similarities to other documents, unmasked (Zhang et al. 2025,
// arXiv 2506.05176).
#include <ATen/TensorIndexing.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <limits>

#include "twinkle/loss/options.h"
#include "twinkle/loss/vectors/vectors.h"

namespace twinkle::loss {
namespace {

struct Options {
  double temperature = 0.1;
  bool use_batch = true;
  int64_t hard_negatives = 0;  // 0: as many as there are
  bool mask_fake_negative = false;
  double fake_neg_margin = 0.1;
  bool include_qq = false, include_dd = false;

  static constexpr auto fields() {
    return std::tuple{
        option("temperature", &Options::temperature, above(0), "of the similarities"),
        option("use_batch", &Options::use_batch, any(), "compares with other groups"),
        option("hard_negatives", &Options::hard_negatives, at_least(1), "of a group [all]"),
        option("mask_fake_negative", &Options::mask_fake_negative, any(), "by the margin"),
        option("fake_neg_margin", &Options::fake_neg_margin, above(0), "above the positive's"),
        option("include_qq", &Options::include_qq, any(), "anchors are documents, too"),
        option("include_dd", &Options::include_dd, any(), "positives ask, too")};
  }
};

Options parse(const Json& json) {
  const auto o = parsed<Options>(json, "InfonceLoss");
  require(o.use_batch || !(o.include_qq || o.include_dd), Code::kInvalid,
          "loss: include_qq and include_dd compare groups with each other, they need "
          "use_batch=True");
  return o;
}

constexpr double kOut = -std::numeric_limits<double>::infinity();

struct Documents {
  std::vector<int64_t> rows;   // [N] of the embeddings: each group's positive, then its negatives
  std::vector<int64_t> owner;  // [N] their groups
  std::vector<int64_t> own;    // [G] where each group's positive is among them
};

Documents documents_of(const at::Tensor& anchors, int64_t num_rows, int64_t hard_negatives) {
  Documents out;
  const int64_t groups = anchors.numel();
  for (int64_t g = 0; g < groups; ++g) {
    const auto begin = anchors[g].item<int64_t>();
    const int64_t end = g + 1 < groups ? anchors[g + 1].item<int64_t>() : num_rows;
    const int64_t there = end - begin - 2, count = hard_negatives ? hard_negatives : there;
    require(count == 0 || there > 0, Code::kInvalid, "loss: hard_negatives is ", hard_negatives,
            ", but the group of inputs[", begin, "] has no negative to repeat");
    out.own.push_back(static_cast<int64_t>(out.rows.size()));
    out.rows.push_back(begin + 1);
    for (int64_t i = 0; i < count; ++i) out.rows.push_back(begin + 2 + i % there);
    out.owner.resize(out.rows.size(), g);
  }
  return out;
}

at::Tensor loss_of(const at::Tensor& embeddings, const at::Tensor& anchors, const Options& o) {
  const Documents documents = documents_of(anchors, embeddings.size(0), o.hard_negatives);
  const at::Tensor owner = at::tensor(documents.owner), own = at::tensor(documents.own);
  const at::Tensor docs = embeddings.index({at::tensor(documents.rows)});
  const at::Tensor queries = embeddings.index({anchors});
  const at::Tensor rows = at::arange(anchors.numel());
  at::Tensor scores = queries.matmul(docs.t());
  const at::Tensor limit = scores.detach().gather(1, own.unsqueeze(1)) + o.fake_neg_margin;
  const auto masked = [&](const at::Tensor& of) {
    return o.mask_fake_negative ? of.masked_fill(of > limit, kOut) : of;
  };
  if (!o.use_batch) scores = scores.masked_fill(owner != rows.unsqueeze(1), kOut);
  std::vector<at::Tensor> parts = {masked(scores)};
  if (o.include_qq)
    parts.push_back(
        masked(queries.matmul(queries.t()).masked_fill(rows == rows.unsqueeze(1), kOut)));
  if (o.include_dd) {
    const at::Tensor itself = at::arange(docs.size(0)) == own.unsqueeze(1);
    parts.push_back(docs.index({own}).matmul(docs.t()).masked_fill(itself, kOut));
  }
  return at::cross_entropy_loss(at::cat(parts, 1) / o.temperature, own);
}

OfVectors run(const at::Tensor& vectors, const VectorExtras& extras, const Json& json) {
  const Options o = parse(json);
  const at::AutoGradMode enabled(true);
  const at::Tensor leaf = vectors.detach().requires_grad_(true);
  const at::Tensor loss = loss_of(leaf.to(at::kDouble), extras.at("anchors"), o);
  return {loss.item<double>(), torch::autograd::grad({loss}, {leaf}).at(0)};
}

}  // namespace

VectorLoss info_nce() {
  return {.class_name = "InfonceLoss",
          .options = described<Options>,
          .check = checked<parse>,
          .run = run};
}

}  // namespace twinkle::loss
