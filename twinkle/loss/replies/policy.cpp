#include "twinkle/loss/replies/policy.h"

#include <algorithm>
#include <cmath>

#include "twinkle/loss/reduce.h"

namespace twinkle::loss {
namespace {

constexpr double kMostLogRatio = 20;

// d loss / d entropy, [N] float32; undefined without a coefficient.
at::Tensor entropy_bonus(const Inputs& in, double entropy_coef, const std::vector<double>& scale) {
  if (entropy_coef == 0) return {};
  const auto weights = elements(in.weights);
  at::Tensor out = at::empty({in.weights.numel()}, at::kFloat);
  for (size_t t = 0; t < weights.size(); ++t)
    out.mutable_data_ptr<float>()[t] = static_cast<float>(-entropy_coef * scale[t] * weights[t]);
  return out;
}

}  // namespace

Ratio ratio_of(double logprob, const double* old) {
  if (!old) return {1, 1};
  const double difference = logprob - *old;
  const double r = std::exp(std::clamp(difference, -kMostLogRatio, kMostLogRatio));
  return {r, std::abs(difference) <= kMostLogRatio ? r : 0};
}

Term surrogate(const PolicyOptions& o, const Ratio& ratio, double a) {
  const double clipped = std::clamp(ratio.value, 1 - o.epsilon, 1 + o.high()) * a;
  if (clipped < ratio.value * a) return {-clipped, 0};
  return {-ratio.value * a, -ratio.slope * a};
}

Term divergence(double beta, double logprob, double reference) {
  const double gap = reference - logprob;
  return {beta * (std::exp(gap) - gap - 1), beta * (1 - std::exp(gap))};
}

std::vector<double> mean_of_sequences(const Inputs& in) {
  const auto weights = elements(in.weights);
  std::vector<double> out(weights.size());
  const auto sequences = static_cast<double>(in.cu_seqlens.size()) - 1;
  for (size_t s = 0; s + 1 < in.cu_seqlens.size(); ++s) {
    const auto begin = static_cast<size_t>(in.cu_seqlens[s]),
               size = static_cast<size_t>(in.cu_seqlens[s + 1]) - begin;
    const auto count = static_cast<double>(
        std::ranges::count_if(weights.subspan(begin, size), [](float w) { return w != 0; }));
    std::fill_n(out.begin() + in.cu_seqlens[s], size, 1 / (std::max(count, 1.0) * sequences));
  }
  return out;
}

std::vector<double> mean_of_rows(const Inputs& in) {
  return std::vector<double>(static_cast<size_t>(in.weights.numel()),
                             1 / std::max(num_scored(in.weights), 1.0));
}

PolicyRows policy_rows(const Inputs& in, const PolicyOptions& o, std::string_view loss,
                       std::vector<double> scale) {
  require(o.beta == 0 || in.weights.numel() == 0 || in.extras.contains("ref_logps"), Code::kInvalid,
          "loss: ", loss, " needs 'ref_logps' where beta is above 0, pass it with the batch");
  PolicyRows rows{.scale = std::move(scale),
                  .advantages = doubles(in, "advantages", 0),
                  .reference = doubles(in, "ref_logps", 0)};
  if (in.extras.contains("old_logps")) rows.old = doubles(in, "old_logps", 0);
  rows.entropy_grad = entropy_bonus(in, o.entropy_coef, rows.scale);
  return rows;
}

RowLoss of_policy(const Inputs& in, const PolicyOptions& o, std::string_view loss,
                  std::vector<double> scale, OfRatio of_ratio) {
  PolicyRows rows = policy_rows(in, o, loss, std::move(scale));
  const at::Tensor bonus = rows.entropy_grad;
  return {.term = [beta = o.beta, of_ratio = std::move(of_ratio), rows = std::move(rows)](
                      int64_t row, double lp) -> Term {
            const auto t = static_cast<size_t>(row);
            const Ratio ratio = ratio_of(lp, rows.old.empty() ? nullptr : &rows.old[t]);
            Term each = of_ratio(ratio, rows.advantages[t], lp);
            if (beta > 0) {
              const Term kl = divergence(beta, lp, rows.reference[t]);
              each = {each.value + kl.value, each.grad + kl.grad};
            }
            return {rows.scale[t] * each.value, rows.scale[t] * each.grad};
          },
          .num_tokens = std::min(num_scored(in.weights), 1.0),
          .entropy_grad = bonus};
}

}  // namespace twinkle::loss
