// Dr. GRPO (Liu et al. 2025, arXiv 2503.20783): GRPO's terms, their sum divided by the number of
// sequences times max_completion_length (default 1024), in rows, so that long replies count as much
// a row as short ones. Extras and options: policy.h.
#include "twinkle/loss/options.h"
#include "twinkle/loss/replies/policy.h"

#include <algorithm>
#include <cmath>

namespace twinkle::loss {
namespace {

struct Options {
  PolicyOptions policy;
  int64_t max_completion_length = 1024;

  static constexpr auto fields() {
    return std::tuple{group("policy", &Options::policy),
                      option("max_completion_length", &Options::max_completion_length, at_least(1),
                             "rows that a sequence's sum is divided by")};
  }
};

Options parse(const Json& json) { return parsed<Options>(json, "DRGRPOLoss"); }

RowLoss make(const Inputs& in, const Json& json) {
  const Options options = parse(json);
  const PolicyOptions o = options.policy;
  const double sequences = std::max(1.0, static_cast<double>(in.cu_seqlens.size()) - 1);
  std::vector<double> scale(static_cast<size_t>(in.weights.numel()),
                            1 / (sequences * static_cast<double>(options.max_completion_length)));
  return of_policy(in, o, "DRGRPOLoss", std::move(scale),
                   [o](const Ratio& r, double a, double) { return surrogate(o, r, a); });
}

}  // namespace

Loss dr_grpo() {
  return of_rows<make>({.name = "dr_grpo",
                        .class_name = "DRGRPOLoss",
                        .extras = kPolicyExtras,
                        .check = checked<parse>,
                        .options = described<Options>});
}

}  // namespace twinkle::loss
