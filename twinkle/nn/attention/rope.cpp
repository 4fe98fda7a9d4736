#include "twinkle/nn/attention/rope.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "twinkle/base/error.h"
#include "twinkle/kernels/rope.h"

namespace twinkle::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr double kTau = 2 * std::numbers::pi;

// Peng et al. 2023 (YaRN), section 3.2: between the two betas, from extrapolated to interpolated
// frequencies.
at::Tensor yarn_frequencies(const RopeSpec& spec, const at::Tensor& wave, int64_t dim) {
  const auto correction = [&](double turns) {
    return dim * std::log(static_cast<double>(spec.original_max_position) / (turns * kTau)) /
           (2 * std::log(spec.theta));
  };
  double low = correction(spec.beta_fast), high = correction(spec.beta_slow);
  if (spec.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;
  const auto ramp = ((at::arange(dim / 2, at::kFloat) - low) / (high - low)).clamp(0, 1);
  const auto keep = 1 - ramp;
  return 1.0 / (spec.factor * wave) * (1 - keep) + 1.0 / wave * keep;
}

// The rule of Llama 3.1 (Meta's llama-models, apply_scaling): between the two wavelengths, from
// plain to divided frequencies.
at::Tensor llama3_frequencies(const RopeSpec& spec, const at::Tensor& frequency) {
  const double original = static_cast<double>(spec.original_max_position);
  const double low_wavelength = original / spec.low_freq_factor;
  const double high_wavelength = original / spec.high_freq_factor;
  const auto wavelength = kTau / frequency;
  const auto slow = at::where(wavelength > low_wavelength, frequency / spec.factor, frequency);
  const auto smooth = (original / wavelength - spec.low_freq_factor) /
                      (spec.high_freq_factor - spec.low_freq_factor);
  const auto smoothed = (1 - smooth) * slow / spec.factor + smooth * slow;
  const auto medium =
      (wavelength < high_wavelength).logical_not() * (wavelength > low_wavelength).logical_not();
  return at::where(medium, smoothed, slow);
}

// Ding et al. 2024 (LongRoPE), section 3.2: each pair's own divisor.
at::Tensor divided(const at::Tensor& wave, const std::vector<double>& factors) {
  require(std::ssize(factors) == wave.size(0), Code::kInvalid, "nn: rope has ", factors.size(),
          " factors for ", wave.size(0), " pairs of dims");
  return 1.0 / (at::tensor(factors, at::kFloat) * wave);
}

at::Tensor frequencies(const RopeSpec& spec, int64_t dim, bool is_long) {
  const auto wave = at::pow(spec.theta, at::arange(0, dim, 2, at::kFloat) / dim);
  const auto plain = 1.0 / wave;
  switch (spec.kind) {
    case RopeKind::kDefault:
      return plain;
    case RopeKind::kLinear:
      return plain / spec.factor;  // Chen et al. 2023, position interpolation
    case RopeKind::kYarn:
      return yarn_frequencies(spec, wave, dim);
    case RopeKind::kLlama3:
      return llama3_frequencies(spec, plain);
    case RopeKind::kLongRope:
      return divided(wave, is_long ? spec.long_factor : spec.short_factor);
  }
  fail(Code::kInternal, "nn: rope kind ", static_cast<int>(spec.kind), " is unknown");
}

double attention_factor(const RopeSpec& spec) {
  const bool is_longrope = spec.kind == RopeKind::kLongRope;
  if (spec.kind != RopeKind::kYarn && !is_longrope) return 1;
  if (spec.attention_factor) return *spec.attention_factor;
  if (is_longrope) {
    const double original = static_cast<double>(spec.original_max_position);
    return spec.factor <= 1 ? 1 : std::sqrt(1 + std::log(spec.factor) / std::log(original));
  }
  const auto mscale = [&](double m) {
    return spec.factor <= 1 ? 1.0 : 0.1 * m * std::log(spec.factor) + 1;
  };
  const double all = spec.mscale_all_dim.value_or(0), own = spec.mscale.value_or(0);
  return own != 0 && all != 0 ? mscale(own) / mscale(all) : mscale(1);
}

void check(const RopeSpec& spec) {
  require(spec.theta > 1 && std::isfinite(spec.theta), Code::kInvalid, "nn: rope theta is ",
          spec.theta, ", it must be finite and above 1");
  if (spec.kind == RopeKind::kDefault) return;
  require(spec.factor > 0 && std::isfinite(spec.factor), Code::kInvalid, "nn: rope factor is ",
          spec.factor, ", it must be finite and above 0");
  if (spec.kind == RopeKind::kLinear) return;
  require(spec.original_max_position > 0, Code::kInvalid, "nn: rope original_max_position is ",
          spec.original_max_position, ", it must be at least 1");
  if (spec.kind == RopeKind::kLlama3) {
    require(spec.low_freq_factor > 0 && spec.high_freq_factor > spec.low_freq_factor,
            Code::kInvalid, "nn: rope low_freq_factor is ", spec.low_freq_factor,
            " and high_freq_factor ", spec.high_freq_factor,
            ", they must be above 0, the second the larger");
  } else if (spec.kind == RopeKind::kLongRope) {
    require(spec.original_max_position > 1, Code::kInvalid,
            "nn: rope original_max_position is 1, longrope's must be at least 2");
    for (const auto* factors : {&spec.short_factor, &spec.long_factor}) {
      for (const double f : *factors)
        require(f > 0 && std::isfinite(f), Code::kInvalid, "nn: a rope factor of longrope is ", f,
                ", it must be finite and above 0");
    }
  } else {
    require(spec.beta_slow > 0 && spec.beta_fast > 0, Code::kInvalid, "nn: rope beta_slow is ",
            spec.beta_slow, " and beta_fast ", spec.beta_fast, ", they must be above 0");
  }
}

kernels::Pairs pairs_of(bool interleaved) {
  return interleaved ? kernels::Pairs::kNeighbours : kernels::Pairs::kHalves;
}

struct RopeFunction : torch::autograd::Function<RopeFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const RopeTable& table,
                            const at::Tensor& position_ids) {
    context->save_for_backward({table.cos, table.sin, position_ids});
    context->saved_data["interleaved"] = table.interleaved;
    return kernels::rope(x, table.cos, table.sin, position_ids, kernels::Turn::kForward,
                         pairs_of(table.interleaved));
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const auto pairs = pairs_of(context->saved_data["interleaved"].toBool());
    return {kernels::rope(grads[0], saved[0], saved[1], saved[2], kernels::Turn::kBackward, pairs),
            {},
            {}};
  }
};

}  // namespace

RopeTable make_rope_table(const RopeSpec& spec, int64_t head_dim, int64_t num_rows) {
  const int64_t dim = spec.rotary_dim == 0 ? head_dim : spec.rotary_dim;
  require(dim > 0 && dim % 2 == 0 && dim <= head_dim, Code::kInvalid, "nn: rope rotary_dim is ",
          dim, ", it must be even, positive and at most the head size ", head_dim);
  require(num_rows > 0, Code::kInvalid, "nn: rope num_rows is ", num_rows,
          ", it must be at least 1");
  check(spec);
  const auto angles = [&](int64_t count, bool is_long) {
    return at::arange(count, at::kFloat).unsqueeze(1) * frequencies(spec, dim, is_long);
  };
  const int64_t num_long =
      spec.kind == RopeKind::kLongRope ? num_rows - spec.original_max_position : 0;
  at::Tensor angle = angles(num_rows - std::max<int64_t>(num_long, 0), false);
  if (num_long > 0) angle = at::cat({angle, angles(num_long, true)});
  const double factor = attention_factor(spec);
  return {angle.cos() * factor, angle.sin() * factor, spec.interleaved};
}

std::pair<at::Tensor, at::Tensor> apply_rope(const at::Tensor& q_THd, const at::Tensor& k_TKd,
                                             const RopeTable& table,
                                             const at::Tensor& position_ids) {
  if (!at::GradMode::is_enabled()) {
    const auto rotated = [&](const at::Tensor& x) {
      return kernels::rope(x, table.cos, table.sin, position_ids, kernels::Turn::kForward,
                           pairs_of(table.interleaved));
    };
    return {rotated(q_THd), rotated(k_TKd)};
  }
  return {RopeFunction::apply(q_THd, table, position_ids),
          RopeFunction::apply(k_TKd, table, position_ids)};
}

}  // namespace twinkle::nn
