// Dr. GRPO (Liu et al. 2025, arXiv 2503.20783): GRPO's terms, their sum divided by the number of
// sequences times max_completion_length (default 1024), in rows, so that long replies count as much
// a row as short ones. Extras and options: policy.h.
#include "twinkle/loss/options.h"
#include "twinkle/loss/replies/policy.h"

#include <algorithm>
#include <cmath>

namespace twinkle::loss {
namespace {

double parse_length(const Json& json) {
  const auto length = get_or<int64_t>(json, "max_completion_length", 1024);
  require(length >= 1, Code::kInvalid, "loss: max_completion_length of DRGRPOLoss is ", length,
          ", it must be at least 1");
  return static_cast<double>(length);
}

PolicyOptions parse(const Json& json) {
  parse_length(json);
  return parse_policy(json, "DRGRPOLoss", {"max_completion_length"});
}

RowLoss make(const Inputs& in, const Json& json) {
  const PolicyOptions o = parse(json);
  const double sequences = std::max(1.0, static_cast<double>(in.cu_seqlens.size()) - 1);
  std::vector<double> scale(static_cast<size_t>(in.weights.numel()),
                            1 / (sequences * parse_length(json)));
  return of_policy(in, o, "DRGRPOLoss", std::move(scale),
                   [o](const Ratio& r, double a, double) { return surrogate(o, r, a); });
}

}  // namespace

Loss dr_grpo() {
  return of_rows<make>({.name = "dr_grpo",
                        .class_name = "DRGRPOLoss",
                        .extras = kPolicyExtras,
                        .check = checked<parse>});
}

}  // namespace twinkle::loss
