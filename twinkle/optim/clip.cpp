#include "twinkle/optim/clip.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "twinkle/kernels/cuda/cuda.h"
#include "twinkle/kernels/optim/update.h"
#include "twinkle/optim/params.h"

namespace twinkle::optim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kSumChunk = 16384;  // elements of one partial sum, from the tensor's start

double sum_of_powers(const float* x, int64_t n, double power, double unit) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i)
    sum += std::pow(std::abs(static_cast<double>(x[i])) / unit, power);
  return sum;
}

// NaN is larger than anything, so that it is not lost.
double larger(double a, double b) { return std::isnan(a) || a > b ? a : b; }

double largest(const float* x, int64_t n) {
  double most = 0;
  for (int64_t i = 0; i < n; ++i) most = larger(std::abs(static_cast<double>(x[i])), most);
  return most;
}

struct Chunk {
  const float* grad;
  int64_t size;
  size_t param;
};

std::vector<Chunk> chunks_of(std::span<const Param> params) {
  std::vector<Chunk> chunks;
  for (size_t i = 0; i < params.size(); ++i) {
    if (!params[i].grad.defined()) continue;
    const float* grad = params[i].grad.const_data_ptr<float>();
    const int64_t n = params[i].grad.numel();
    for (int64_t begin = 0; begin < n; begin += kSumChunk)
      chunks.push_back({grad + begin, std::min(kSumChunk, n - begin), i});
  }
  return chunks;
}

// For every parameter the sum of powers of its gradient over `unit`, or its largest magnitude.
std::vector<double> sums_on_cpu(std::span<const Param> params, double norm_type, double unit) {
  const std::vector<Chunk> chunks = chunks_of(params);
  std::vector<double> parts(chunks.size());
  at::parallel_for(0, static_cast<int64_t>(chunks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto& [grad, size, param] = chunks[i];
      parts[i] = std::isinf(norm_type) ? largest(grad, size)
                 : norm_type == 2      ? kernels::sum_of_squares(grad, size)
                                       : sum_of_powers(grad, size, norm_type, unit);
    }
  });
  std::vector<double> of_param(params.size(), 0);
  for (size_t i = 0; i < chunks.size(); ++i) {
    double& sum = of_param[chunks[i].param];
    sum = std::isinf(norm_type) ? larger(parts[i], sum) : sum + parts[i];
  }
  return of_param;
}

// The same of gradients on a device, which come over in one copy.
std::vector<double> sums_on_device(std::span<const Param> params, double norm_type, double unit) {
  std::vector<at::Tensor> grads, sums;
  for (const Param& p : params) {
    if (p.grad.defined()) grads.push_back(p.grad);
  }
  std::vector<double> of_param(params.size(), 0);
  if (grads.empty()) return of_param;
  if (norm_type == 2) {
    sums.push_back(kernels::cuda::sums_of_squares(grads));
  } else {
    for (const at::Tensor& grad : grads) {
      const at::Tensor sizes = grad.to(at::kDouble).abs() / unit;
      sums.push_back((std::isinf(norm_type) ? sizes.max() : sizes.pow(norm_type).sum()).view({1}));
    }
  }
  const at::Tensor host = at::cat(sums).cpu();
  const double* next = host.const_data_ptr<double>();
  for (size_t i = 0; i < params.size(); ++i) {
    if (params[i].grad.defined()) of_param[i] = *next++;
  }
  return of_param;
}

std::vector<double> sums(std::span<const Param> params, const Peers& peers, double norm_type,
                         double unit = 1) {
  const bool here = params.empty() || params.front().value.is_cpu();
  auto out = here ? sums_on_cpu(params, norm_type, unit) : sums_on_device(params, norm_type, unit);
  peers.gather(out, std::isinf(norm_type));
  return out;
}

// True if powers of ordinary gradients have left the range of doubles.
bool out_of_range(const std::vector<double>& sums) {
  const double largest = sums.empty() ? 1 : *std::ranges::max_element(sums);
  return largest < std::numeric_limits<double>::min() ||
         !std::ranges::all_of(sums, [](double x) { return std::isfinite(x); });
}

}  // namespace

bool finite(std::span<const at::Tensor> grads) {
  std::vector<Param> params;
  for (const at::Tensor& grad : grads) {
    if (grad.defined()) params.push_back({.name = "", .value = grad, .grad = grad});
  }
  const std::vector<double> squares =
      sums(params, Peers(), 2);  // in double, which float32's squares fit
  return std::all_of(squares.begin(), squares.end(), [](double x) { return std::isfinite(x); });
}

double grad_norm(std::span<const Param> params, double norm_type, double grad_scale,
                 const Peers& peers) {
  require(norm_type > 0, Code::kInvalid, "optim: norm_type is ", norm_type,
          ", it must be above 0, or infinity");
  check(params);
  std::vector<double> of_param = sums(params, peers, norm_type);
  double unit = 1;
  if (norm_type != 2 && !std::isinf(norm_type) && out_of_range(of_param)) {
    const std::vector<double> largest = sums(params, peers, kInfinity);
    unit = 0;
    for (const double x : largest) unit = larger(x, unit);
    of_param = unit > 0 && std::isfinite(unit) ? sums(params, peers, norm_type, unit) : largest;
  }
  for (size_t i = 0; i < params.size(); ++i) {
    require(std::isfinite(of_param[i]), Code::kInvalid, "optim: the gradient of ", params[i].name,
            " has norm ", of_param[i],
            ", it must be finite; nothing was changed: call zero_grad() to drop the accumulated "
            "gradients; check the loss and its weights, or lower the learning rate");
  }
  double total = 0;
  for (const double sum : of_param)
    total = std::isinf(norm_type) ? larger(sum, total) : total + sum;
  const double norm = std::isinf(norm_type) ? total
                      : norm_type == 2      ? std::sqrt(total)
                                            : unit * std::pow(total, 1 / norm_type);
  const double scaled = norm * std::abs(grad_scale);
  require(std::isfinite(scaled), Code::kInvalid, "optim: the norm of all gradients is ", scaled,
          ", it must be finite; nothing was changed");
  return scaled;
}

double clip_factor(double norm, double max_norm) {
  require(max_norm >= 0, Code::kInvalid, "optim: max_norm of clipping is ", max_norm,
          ", it must be at least 0, or infinity");
  return std::min(1.0, max_norm / (norm + 1e-6));
}

void scale(std::span<const at::Tensor> grads, double factor) {
  for (const at::Tensor& grad : grads) {
    if (!grad.defined()) continue;
    if (!grad.is_cpu()) {
      grad.mul_(factor);
      continue;
    }
    float* const x = grad.mutable_data_ptr<float>();
    const auto f = static_cast<float>(factor);
    at::parallel_for(0, grad.numel(), kSumChunk, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) x[i] *= f;
    });
  }
}

}  // namespace twinkle::optim
