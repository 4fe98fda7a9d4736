#include "twinkle/nn/head/pooling.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <span>

namespace twinkle::nn {
namespace {

constexpr double kSmallestNorm = 1e-12;

at::Tensor index_of(const std::vector<int64_t>& last, at::Device device) {
  return at::from_blob(const_cast<int64_t*>(last.data()), {std::ssize(last)}, at::kLong).to(device);
}

std::span<double> row(at::Tensor& values_SD, int64_t s) {
  const auto width = values_SD.size(1);
  return {values_SD.mutable_data_ptr<double>() + s * width, static_cast<size_t>(width)};
}

double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double divide_by_norm(std::span<double> h) {
  const double norm = std::sqrt(dot(h, h));
  for (double& x : h) x /= std::max(norm, kSmallestNorm);
  return norm;
}

at::Tensor take(const at::Tensor& hidden_TD, const std::vector<int64_t>& last) {
  return hidden_TD.index_select(0, index_of(last, hidden_TD.device()))
      .to(at::kCPU)
      .to(at::kDouble)
      .contiguous();
}

}  // namespace

at::Tensor pool_last(const at::Tensor& hidden_TD, const std::vector<int64_t>& last) {
  at::Tensor out = take(hidden_TD, last);
  for (int64_t s = 0; s < out.size(0); ++s) divide_by_norm(row(out, s));
  return out;
}

void add_pool_last_grad(at::Tensor& dhidden_TD, const at::Tensor& hidden_TD,
                        const std::vector<int64_t>& last, const at::Tensor& grad_SD) {
  at::Tensor unit = take(hidden_TD, last), dh = grad_SD.clone();
  for (int64_t s = 0; s < unit.size(0); ++s) {
    const auto e = row(unit, s), d = row(dh, s);
    const double norm = divide_by_norm(e);
    // Below the smallest norm e is h times a constant.
    const double along = norm < kSmallestNorm ? 0 : dot(e, d);
    for (size_t i = 0; i < d.size(); ++i)
      d[i] = (d[i] - e[i] * along) / std::max(norm, kSmallestNorm);
  }
  dhidden_TD.index_add_(0, index_of(last, dhidden_TD.device()), dh.to(dhidden_TD.options()));
}

}  // namespace twinkle::nn
