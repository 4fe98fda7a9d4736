// Cross entropy over scored rows: sum of -w log p(target), or its mean over rows with w != 0.
// Options: reduction "sum" (default) or "mean"; dft (default false): each row is also weighted with
// its own probability, taken as a constant (dynamic fine-tuning, Wu et al. 2025, eq. 9);
// ignore_index -100 (the weights say which rows are scored).
#include <algorithm>
#include <cmath>

#include "twinkle/loss/loss.h"
#include "twinkle/loss/options.h"
#include "twinkle/loss/reduce.h"

namespace twinkle::loss {
namespace {

struct Options {
  bool mean = false;
  bool dft = false;
};

Options parse(const Json& json) {
  check_known(json, "CrossEntropyLoss", {"reduction", "dft", "ignore_index"});
  const std::string reduction = choice(json, "CrossEntropyLoss", "reduction", {"sum", "mean"});
  const auto ignored = get_or<int64_t>(json, "ignore_index", -100);
  require(ignored == -100, Code::kInvalid, "loss: ignore_index of CrossEntropyLoss is ", ignored,
          ", labels are ignored by -100 only");
  return {.mean = reduction == "mean", .dft = get_or<bool>(json, "dft", false)};
}

// The factor of every row's derivative; 0 when no row is scored.
double row_factor(const Options& o, double num_tokens) {
  if (!o.mean) return -1;
  return num_tokens > 0 ? -1 / num_tokens : 0;
}

TokenGrad prepare_rows(const Inputs& in, const Json& json) {
  const Options o = parse(json);
  const auto factor = static_cast<float>(row_factor(o, num_scored(in.weights)));
  return [weights = in.weights, factor, dft = o.dft](int64_t begin, std::span<const float> logprobs,
                                                     std::span<float> grad) {
    const float* w = weights.const_data_ptr<float>() + begin;
    for (size_t i = 0; i < logprobs.size(); ++i) {
      grad[i] = factor * w[i];
      if (dft && w[i] != 0) grad[i] *= std::exp(logprobs[i]);
    }
  };
}

// As prepare_rows, in double.
at::Tensor gradient_of_doubles(const Inputs& in, const Options& o, double factor) {
  at::Tensor grad = at::empty_like(in.logprobs);
  const auto* logprobs = in.logprobs.const_data_ptr<double>();
  const auto weights = elements(in.weights);
  auto* out = grad.mutable_data_ptr<double>();
  for (size_t t = 0; t < weights.size(); ++t)
    out[t] = factor * weights[t] * (o.dft && weights[t] != 0 ? std::exp(logprobs[t]) : 1.0);
  return grad;
}

template <class Real>
double weighted_sum(const Inputs& in, bool dft) {
  const auto* logprobs = in.logprobs.const_data_ptr<Real>();
  const auto weights = elements(in.weights);
  double sum = 0;
  for (size_t s = 0; s + 1 < in.cu_seqlens.size(); ++s) {
    double of_sequence = 0;
    for (int64_t t = in.cu_seqlens[s]; t < in.cu_seqlens[s + 1]; ++t)
      if (weights[t] != 0)  // an ignored row's log-probability may be anything
        of_sequence += static_cast<double>(weights[t]) * logprobs[t] *
                       (dft ? std::exp(static_cast<double>(logprobs[t])) : 1.0);
    sum += of_sequence;
  }
  return sum;
}

Output run_all(const Inputs& in, const Json& json) {
  const Options o = parse(json);
  const double num_tokens = num_scored(in.weights), factor = row_factor(o, num_tokens);
  Output out{.num_tokens = o.mean ? std::min(num_tokens, 1.0) : num_tokens};
  if (in.logprobs.scalar_type() == at::kDouble) {
    out.grad = gradient_of_doubles(in, o, factor);
    out.loss = factor * weighted_sum<double>(in, o.dft);
    return out;
  }
  out.grad = at::empty_like(in.logprobs);
  prepare_rows(in, json)(0, elements(in.logprobs),
                         {out.grad.mutable_data_ptr<float>(), elements(in.logprobs).size()});
  out.loss = factor * weighted_sum<float>(in, o.dft);
  return out;
}

}  // namespace

Loss cross_entropy() {
  return {.name = "cross_entropy",
          .class_name = "CrossEntropyLoss",
          .extras = {},
          .check = [](const Json& json) { parse(json); },
          .run = run_all,
          .prepare = prepare_rows,
          .doubles = true,
          .many_targets = true};
}

}  // namespace twinkle::loss
