#include "twinkle/loss/arguments/old_policy.h"

#include <cmath>
#include <iomanip>
#include <sstream>

namespace twinkle::loss {

void Gaps::add(double logprob, double old_logprob) {
  ++count;
  sum += logprob - old_logprob;
  sum_of_ratios += std::exp(logprob - old_logprob);
}

std::string ratio_warning(const Gaps& gaps) {
  const auto count = static_cast<double>(gaps.count);
  const double ratio = gaps.sum_of_ratios / count, geometric = std::exp(gaps.sum / count);
  const auto is_near = [](double r) { return r >= 0.8 && r <= 1.25; };
  if (gaps.count == 0 || (is_near(ratio) && is_near(geometric))) return {};
  std::ostringstream text;
  text << std::setprecision(3) << "model: the ratio of the policy to old_logps is " << ratio
       << " in the mean of this run's first batch with them, and " << geometric
       << " in the geometric mean: it is near 1 where the same weights sampled at the same "
          "temperature; compare temperature, the sampler's weights and the tokens that have labels";
  return text.str();
}

}  // namespace twinkle::loss
