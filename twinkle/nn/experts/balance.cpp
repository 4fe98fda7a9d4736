#include "twinkle/nn/experts/balance.h"

namespace twinkle::nn {

void Balance::note(size_t layer, AuxLoss form, const at::Tensor& scores, const at::Tensor& ids) {
  layers_[layer] = {form, scores.size(1), ids.size(1),
                    kernels::choice_sums(scores, ids, cu_seqlens_)};
}

std::vector<double> Balance::slopes(size_t layer, size_t sequence) const {
  const Layer& of = layers_.at(layer);
  const auto experts = static_cast<size_t>(of.experts);
  const bool all = of.form == AuxLoss::kAllLayers;
  std::vector<double> out(experts);
  for (const auto& [index, other] : layers_) {
    if (!all && index != layer) continue;
    for (size_t e = 0; e < experts; ++e) out[e] += other.sums.counts[sequence * experts + e];
  }
  const auto tokens = static_cast<double>(cu_seqlens_[sequence + 1] - cu_seqlens_[sequence]);
  const double rows = all ? tokens * static_cast<double>(layers_.size()) : tokens;
  const double divisor = rows * rows * (all ? 1 : static_cast<double>(of.top_k));
  for (double& slope : out) slope *= static_cast<double>(of.experts) / divisor;
  return out;
}

void Balance::add_grad(size_t layer, const at::Tensor& scores, const at::Tensor& dlogits) const {
  std::vector<double> all;
  for (size_t s = 0; s < coefficients_.size(); ++s) {
    for (const double slope : slopes(layer, s)) all.push_back(coefficients_[s] * slope);
  }
  kernels::add_slopes(scores, all, cu_seqlens_, dlogits);
}

// It is linear in the sums of p.
double Balance::loss(size_t sequence) const {
  double out = 0;
  for (const auto& [index, layer] : layers_) {
    const std::vector<double> of_layer = slopes(index, sequence);
    const double* sums = layer.sums.scores.data() + sequence * of_layer.size();
    for (size_t e = 0; e < of_layer.size(); ++e) out += of_layer[e] * sums[e];
  }
  return out;
}

}  // namespace twinkle::nn
