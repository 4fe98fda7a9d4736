#include "twinkle/lora/labels/label_head.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "twinkle/base/random.h"
#include "twinkle/kernels/random/uniform.h"

namespace twinkle::lora {
namespace {

at::Tensor index_of(const std::vector<int64_t>& rows, at::Device device) {
  return at::tensor(rows, at::kLong).to(device);
}

at::Tensor wide(const at::Tensor& values) {
  return values.to(at::kCPU).to(at::kDouble).contiguous();
}

}  // namespace

at::Tensor new_label_weight(int64_t num_labels, int64_t width, uint64_t seed) {
  constexpr double kDeviation = 0.02;
  at::Tensor out = at::empty({num_labels, width}, at::kFloat);
  kernels::fill_uniform(key_of(seed, kLabelWeight), kDeviation * std::sqrt(3.0),
                        {out.mutable_data_ptr<float>(), static_cast<size_t>(out.numel())});
  return out;
}

std::vector<float> label_logits(const LabelHead& head, const at::Tensor& hidden_TD,
                                const std::vector<int64_t>& last) {
  const at::Tensor weight = wide(head.weight);
  const at::Tensor hidden = wide(hidden_TD.index_select(0, index_of(last, hidden_TD.device())));
  const int64_t labels = weight.size(0), width = weight.size(1);
  std::vector<float> out;
  out.reserve(last.size() * static_cast<size_t>(labels));
  const auto* h = hidden.const_data_ptr<double>();
  for (size_t s = 0; s < last.size(); ++s, h += width) {
    const auto* w = weight.const_data_ptr<double>();
    for (int64_t n = 0; n < labels; ++n, w += width) {
      double sum = 0;
      for (int64_t i = 0; i < width; ++i) sum += w[i] * h[i];
      out.push_back(static_cast<float>(sum));
    }
  }
  return out;
}

void add_label_grads(const LabelHead& head, const std::vector<int64_t>& last,
                     std::span<const float> grads, at::Tensor& dhidden_TD) {
  const at::Tensor weight = wide(head.weight);
  const int64_t labels = weight.size(0), width = weight.size(1);
  at::Tensor added = at::zeros({std::ssize(last), width}, at::kDouble);
  auto* d = added.mutable_data_ptr<double>();
  const float* grad = grads.data();
  for (size_t s = 0; s < last.size(); ++s, d += width) {
    const auto* w = weight.const_data_ptr<double>();
    for (int64_t n = 0; n < labels; ++n, w += width, ++grad)
      for (int64_t i = 0; i < width; ++i) d[i] += double{*grad} * w[i];
  }
  dhidden_TD.index_add_(0, index_of(last, dhidden_TD.device()), added.to(dhidden_TD.options()));
}

void add_weight_grad(LabelHead& head, const at::Tensor& hidden_TD, int64_t last,
                     std::span<const float> grads) {
  const at::Tensor hidden = wide(hidden_TD.select(0, last));
  const at::Tensor given = at::empty({std::ssize(grads)}, at::kDouble);
  std::ranges::copy(grads, given.mutable_data_ptr<double>());
  head.grad.add_(at::outer(given, hidden).to(head.grad.options()));
}

}  // namespace twinkle::lora
