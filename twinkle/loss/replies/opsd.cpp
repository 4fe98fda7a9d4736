// On-policy self-distillation (Zhao et al. 2026, arXiv 2601.18734) of the tokens that the policy
// has sampled, as ModelScope's Twinkle has it: exp(r) - r - 1, r = teacher_logps - log p within
// +-10, the k3 estimate (Schulman 2020) of KL(policy || teacher), the mean over all rows of the
// batch. The teacher is the same model with more in its prompt. Extra per row: teacher_logps.
// Option: reverse (true); false: r is log p - teacher_logps.
#include <algorithm>
#include <cmath>

#include "twinkle/loss/options.h"
#include "twinkle/loss/replies/policy.h"

namespace twinkle::loss {
namespace {

constexpr double kMostLogRatio = 10;

struct Options {
  bool reverse = true;

  static constexpr auto fields() {
    return std::tuple{option("reverse", &Options::reverse, any(), "r is the teacher's less ours")};
  }
};

Options parse(const Json& json) { return parsed<Options>(json, "OPSDLoss"); }

RowLoss make(const Inputs& in, const Json& json) {
  const double sign = parse(json).reverse ? -1 : 1;
  return {.term = [sign, scale = mean_of_rows(in), teacher = doubles(in, "teacher_logps", 0)](
                      int64_t row, double lp) -> Term {
            const auto t = static_cast<size_t>(row);
            const double gap = sign * (lp - teacher[t]);
            const double r = std::clamp(gap, -kMostLogRatio, kMostLogRatio);
            const double slope = std::abs(gap) <= kMostLogRatio ? sign * std::expm1(r) : 0;
            return {scale[t] * (std::expm1(r) - r), scale[t] * slope};
          },
          .num_tokens = std::min(num_scored(in.weights), 1.0)};
}

}  // namespace

Loss opsd() {
  return of_rows<make>({.name = "opsd",
                        .class_name = "OPSDLoss",
                        .extras = {{.name = "teacher_logps"}},
                        .check = checked<parse>,
                        .options = described<Options>});
}

}  // namespace twinkle::loss
