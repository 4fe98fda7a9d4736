#include "twinkle/sampler/logits/sampling.h"

#include <ATen/core/PhiloxRNGEngine.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

namespace twinkle::sampler {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr size_t kBlock = 512;  // weights summed together, so that a draw skips most of them

// The largest logit; NaN when one is NaN or +inf, or all are -inf.
float largest(std::span<const float> logits) {
  constexpr size_t n = 16;
  float tops[n];
  bool good[n];
  std::fill_n(tops, n, kLowest);
  std::fill_n(good, n, true);
  size_t i = 0;
  for (; i + n <= logits.size(); i += n) {
    for (size_t j = 0; j < n; ++j) {
      tops[j] = logits[i + j] > tops[j] ? logits[i + j] : tops[j];
      good[j] &= logits[i + j] == logits[i + j];
    }
  }
  for (; i < logits.size(); ++i) {
    tops[0] = std::max(tops[0], logits[i]);
    good[0] &= logits[i] == logits[i];
  }
  const float top = *std::max_element(tops, tops + n);
  const bool usable = std::all_of(good, good + n, [](bool b) { return b; }) && std::isfinite(top);
  return usable ? top : std::numeric_limits<float>::quiet_NaN();
}

// e^x for x <= 0, exactly 0 below -87; Cephes' expf (Moshier 1992), relative error below 2e-7. No
// branch, so that the loop over it is vectorised.
inline float exp_nonpositive(float x) {
  const float bounded = x > -87.0f ? x : -87.0f;
  const float shifted = bounded * 1.44269504088896341f + 12582912.0f;  // low bits: the integer
  const float n = shifted - 12582912.0f;
  const float r = bounded - n * 0.693359375f + n * 2.12194440e-4f;
  float p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const uint32_t power = (std::bit_cast<uint32_t>(shifted) << 23) + (127u << 23);
  const float y = p * std::bit_cast<float>(power);
  return x < -87.0f ? 0.0f : y;
}

// weights[i] = exp((logits[i] - top) / temperature), 0 where the logit is below `threshold`;
// sums[b] of each block. Returns their total.
double weigh(std::span<const float> logits, float top, double temperature, float threshold,
             PickScratch& s) {
  const auto inverse = static_cast<float>(1 / temperature);
  const size_t vocab = logits.size();
  s.weights.resize(vocab);
  s.sums.clear();
  for (size_t i = 0; i < vocab; ++i) {
    const float w = exp_nonpositive((logits[i] - top) * inverse);
    s.weights[i] = logits[i] >= threshold ? w : 0.0f;
  }
  double total = 0;
  for (size_t begin = 0; begin < vocab; begin += kBlock) {
    const size_t end = std::min(vocab, begin + kBlock);
    double lanes[8] = {};
    size_t i = begin;
    for (; i + 8 <= end; i += 8) {
      for (size_t j = 0; j < 8; ++j) lanes[j] += static_cast<double>(s.weights[i + j]);
    }
    for (; i < end; ++i) lanes[0] += static_cast<double>(s.weights[i]);
    double sum = 0;
    for (const double lane : lanes) sum += lane;
    s.sums.push_back(sum);
    total += sum;
  }
  return total;
}

// The k-th largest logit, 1 <= k < V.
float kth_largest(std::span<const float> logits, size_t k, std::vector<float>& heap) {
  if (k > logits.size() / 8) {
    heap.assign(logits.begin(), logits.end());
    const auto kth = heap.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::nth_element(heap.begin(), kth, heap.end(), std::greater<>());
    return *kth;
  }
  heap.assign(logits.begin(), logits.begin() + static_cast<std::ptrdiff_t>(k));
  std::make_heap(heap.begin(), heap.end(), std::greater<>());  // the smallest of the k first
  for (const float x : logits.subspan(k)) {
    if (x <= heap.front()) continue;
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.back() = x;
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  }
  return heap.front();
}

// Leaves in s.ids the nucleus (Holtzman et al. 2020), largest first, and returns its weight: tokens
// before which the sum is below top_p. Of equal logits the higher id comes first, as in
// transformers.
double nucleus(std::span<const float> logits, double top_p, double total, PickScratch& s) {
  // All that weigh less than their even share of the 1 - top_p are outside, without sorting: a
  // little below it, for rounding.
  const double even = (1 - top_p) * total / static_cast<double>(logits.size()) * 0.999;
  s.ids.clear();
  for (size_t i = 0; i < s.weights.size(); ++i) {
    if (s.weights[i] > 0 && static_cast<double>(s.weights[i]) >= even) {
      s.ids.push_back(static_cast<int32_t>(i));
    }
  }
  const auto logit = [&](int32_t id) { return logits[static_cast<size_t>(id)]; };
  std::sort(s.ids.begin(), s.ids.end(), [&](int32_t a, int32_t b) {
    return logit(a) != logit(b) ? logit(a) > logit(b) : a > b;
  });
  double sum = 0;
  size_t kept = 0;
  while (kept < s.ids.size() && (kept == 0 || sum < top_p * total)) {
    sum += static_cast<double>(s.weights[static_cast<size_t>(s.ids[kept++])]);
  }
  s.ids.resize(kept);
  return sum;
}

// Drops from s.ids, largest first, those below `threshold`; returns the weight that is left.
double drop_below(float threshold, std::span<const float> logits, PickScratch& s) {
  double sum = 0;
  size_t kept = 0;
  for (; kept < s.ids.size(); ++kept) {
    const auto id = static_cast<size_t>(s.ids[kept]);
    if (logits[id] < threshold) break;
    sum += static_cast<double>(s.weights[id]);
  }
  s.ids.resize(kept);
  return sum;
}

// The first of `count` whose running sum of weight(i) exceeds `target`; for rounding at the end,
// the last that weighs anything.
template <class Weight>
size_t find_mass(size_t begin, size_t end, double target, const Weight& weight) {
  size_t last = begin;
  for (size_t i = begin; i < end; ++i) {
    const double w = weight(i);
    if (w > 0) last = i;
    if (target < w) return i;
    target -= w;
  }
  return last;
}

int32_t draw_any(double target, const PickScratch& s) {
  size_t block = 0, last = 0;
  for (; block < s.sums.size(); ++block) {
    if (s.sums[block] > 0) last = block;
    if (target < s.sums[block]) break;
    target -= s.sums[block];
  }
  if (block == s.sums.size()) block = last;
  const size_t begin = block * kBlock, end = std::min(s.weights.size(), begin + kBlock);
  return static_cast<int32_t>(
      find_mass(begin, end, target, [&](size_t i) { return static_cast<double>(s.weights[i]); }));
}

int32_t draw_of_ids(double target, const PickScratch& s) {
  return s.ids[find_mass(0, s.ids.size(), target, [&](size_t i) {
    return static_cast<double>(s.weights[static_cast<size_t>(s.ids[i])]);
  })];
}

// Positive logits are divided, negative ones multiplied (Keskar et al. 2019, section 4.1), each
// once.
std::span<const float> penalised(std::span<const float> logits, double penalty,
                                 std::span<const int32_t> history, std::vector<float>& out) {
  const auto p = static_cast<float>(penalty);
  out.assign(logits.begin(), logits.end());
  for (const int32_t token : history) {
    const auto i = static_cast<size_t>(token);
    out[i] = logits[i] < 0 ? logits[i] * p : logits[i] / p;
  }
  return out;
}

}  // namespace

double uniform(uint64_t seed, uint64_t sample, uint64_t position) {
  at::Philox4_32 engine(seed, sample, position);
  const uint64_t high = engine(), low = engine();
  return static_cast<double>((high << 32 | low) >> 11) * 0x1p-53;
}

float temperature_of(const SamplingParams& params) {
  return params.temperature == 0 ? 1.0f : static_cast<float>(params.temperature);
}

int32_t pick(std::span<const float> logits, const SamplingParams& params,
             std::span<const int32_t> history, double u, PickScratch& scratch) {
  if (params.repetition_penalty != 1.0) {
    logits = penalised(logits, params.repetition_penalty, history, scratch.logits);
  }
  const float top = largest(logits);
  if (std::isnan(top)) return kNoToken;
  if (params.temperature == 0) {
    return static_cast<int32_t>(std::find(logits.begin(), logits.end(), top) - logits.begin());
  }
  const bool limited = params.top_k > 0 && params.top_k < static_cast<int64_t>(logits.size());
  const float kth =
      limited ? kth_largest(logits, static_cast<size_t>(params.top_k), scratch.heap) : kLowest;
  // p >= min_p * p(top), said of logits (Nguyen et al. 2024); rounding never drops the top itself.
  const float least = std::min(
      top,
      static_cast<float>(static_cast<double>(top) + params.temperature * std::log(params.min_p)));
  if (params.top_p == 1.0) {
    const double total = weigh(logits, top, params.temperature, std::max(kth, least), scratch);
    return draw_any(u * total, scratch);
  }
  const double total = weigh(logits, top, params.temperature, kth, scratch);
  double kept = nucleus(logits, params.top_p, total, scratch);
  if (params.min_p > 0) kept = drop_below(least, logits, scratch);
  return draw_of_ids(u * kept, scratch);
}

void draw(std::span<const float> logits, double temperature, std::span<const double> u,
          PickScratch& scratch, std::span<int32_t> out) {
  const float top = largest(logits);
  if (std::isnan(top) || temperature == 0) {
    const auto first = std::ranges::find(logits, top) - logits.begin();
    std::ranges::fill(out, std::isnan(top) ? kNoToken : static_cast<int32_t>(first));
    return;
  }
  const double total = weigh(logits, top, temperature, kLowest, scratch);
  std::ranges::transform(u, out.begin(), [&](double x) { return draw_any(x * total, scratch); });
}

}  // namespace twinkle::sampler
