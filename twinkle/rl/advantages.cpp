#include "twinkle/rl/advantages.h"

#include <cmath>
#include <numeric>

#include "twinkle/base/error.h"

namespace twinkle::rl {
namespace {

constexpr double kEpsilon = 1e-8;  // added to the deviation that divides

double squares_of(std::span<const double> values) {
  const double mean = mean_of(values);
  double sum = 0;
  for (const double v : values) sum += (v - mean) * (v - mean);
  return sum;
}

}  // namespace

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double deviation_of(std::span<const double> values) {
  if (values.size() < 2) return 0;
  return std::sqrt(squares_of(values) / static_cast<double>(values.size() - 1));
}

std::vector<double> group_advantages(std::span<const double> rewards, const GroupOptions& options) {
  const auto count = static_cast<size_t>(options.num_generations);
  require(rewards.size() % count == 0, Code::kInvalid, "advantage: ", rewards.size(),
          " rewards are no multiple of num_generations, ", count, ": every prompt needs that many");
  if (count == 1 && options.scale == Scale::kGroup) return {rewards.begin(), rewards.end()};
  const size_t size = count == 1 ? rewards.size() : count;
  // r - (sum - r) / (G - 1) is G / (G - 1) times r - sum / G
  const double factor = options.baseline == Baseline::kGroup
                            ? 1
                            : static_cast<double>(count) / static_cast<double>(count - 1);
  std::vector<double> out;
  out.reserve(rewards.size());
  for (size_t begin = 0; begin < rewards.size(); begin += size) {
    const std::span<const double> group = rewards.subspan(begin, size);
    std::vector<double> apart;  // from the first: of equal rewards exact zeros
    for (const double r : group) apart.push_back(r - group[0]);
    const double mean = mean_of(apart);
    const double deviation = deviation_of(options.scale == Scale::kBatch ? rewards : group);
    const double divisor = options.scale == Scale::kNone ? 1 : deviation + kEpsilon;
    for (const double a : apart) out.push_back((a - mean) * factor / divisor);
  }
  return out;
}

void token_advantages(std::span<const double> rewards, std::span<const double> values,
                      std::span<const double> masks, const Decay& decay,
                      std::span<double> advantages) {
  double next_advantage = 0, next_value = 0;
  for (size_t t = rewards.size(); t-- > 0;) {
    advantages[t] = 0;
    if (masks[t] == 0) continue;
    const double delta = rewards[t] + decay.gamma * next_value - values[t];
    next_advantage = advantages[t] = delta + decay.gamma * decay.lambda * next_advantage;
    next_value = values[t];
  }
}

void whiten(std::span<double> values, std::span<const double> masks) {
  std::vector<double> counted;
  for (size_t i = 0; i < values.size(); ++i)
    if (masks[i] != 0) counted.push_back(values[i]);
  if (counted.empty()) return;
  const double mean = mean_of(counted);
  const double deviation = std::sqrt(squares_of(counted) / static_cast<double>(counted.size()));
  for (size_t i = 0; i < values.size(); ++i)
    if (masks[i] != 0) values[i] = (values[i] - mean) / (deviation + kEpsilon);
}

}  // namespace twinkle::rl
