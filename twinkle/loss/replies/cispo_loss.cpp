// Clipped importance sampling policy optimization (MiniMax 2025, arXiv 2506.13585, eq. 4) as a mean
// over all rows of the batch: -min(r, 1 + epsilon_high) A lp, the first factor taken as a constant.
// As in the paper's runs, r has no lower limit. Extras and options: policy.h; num_items_in_batch,
// in place of the number of rows.
#include "twinkle/loss/options.h"
#include "twinkle/loss/replies/policy.h"

#include <algorithm>
#include <cmath>

namespace twinkle::loss {
namespace {

struct Options {
  PolicyOptions policy;
  int64_t divisor = 0;  // 0: the rows

  static constexpr auto fields() {
    return std::tuple{group("policy", &Options::policy),
                      option("num_items_in_batch", &Options::divisor, at_least(1),
                             "what the sum is divided by [the number of rows]")};
  }
};

Options parse(const Json& json) { return parsed<Options>(json, "CISPOLoss"); }

RowLoss make(const Inputs& in, const Json& json) {
  const Options o = parse(json);
  std::vector<double> scale = mean_of_rows(in);
  if (o.divisor) std::ranges::fill(scale, 1 / static_cast<double>(o.divisor));
  return of_policy(in, o.policy, "CISPOLoss", std::move(scale),
                   [most = 1 + o.policy.high()](const Ratio& r, double a, double lp) -> Term {
                     const double factor = -std::min(r.value, most) * a;
                     return {factor * lp, factor};
                   });
}

}  // namespace

Loss cispo_loss() {
  return of_rows<make>({.name = "cispo_loss",
                        .class_name = "CISPOLoss",
                        .extras = kPolicyExtras,
                        .check = checked<parse>,
                        .options = described<Options>});
}

}  // namespace twinkle::loss
