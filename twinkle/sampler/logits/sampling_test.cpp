#include "twinkle/sampler/logits/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>

namespace twinkle::sampler {
namespace {

// Logits as a bf16 head gives them: few distinct values, so with ties.
std::vector<float> some_logits(size_t vocab, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(vocab);
  for (float& x : logits) x = std::round(normal(random) * 16) / 16;
  return logits;
}

// transformers' processors and warpers, word by word, on doubles: penalty, temperature, top-k,
// top-p, min-p, softmax.
std::vector<double> reference(std::vector<float> logits, const SamplingParams& p,
                              const std::vector<int32_t>& history) {
  const double none = -std::numeric_limits<double>::infinity();
  std::vector<double> x(logits.begin(), logits.end());
  for (const int32_t id : std::set<int32_t>(history.begin(), history.end())) {
    x[id] = x[id] < 0 ? x[id] * p.repetition_penalty : x[id] / p.repetition_penalty;
  }
  for (double& v : x) v /= p.temperature;
  if (p.top_k > 0 && p.top_k < std::ssize(x)) {
    std::vector<double> sorted = x;
    std::sort(sorted.rbegin(), sorted.rend());
    const double kth = sorted[p.top_k - 1];
    for (double& v : x) v = v < kth ? none : v;
  }
  const auto softmax = [&] {
    const double top = *std::max_element(x.begin(), x.end());
    std::vector<double> e;
    for (const double v : x) e.push_back(std::exp(v - top));
    const double sum = std::accumulate(e.begin(), e.end(), 0.0);
    for (double& v : e) v /= sum;
    return e;
  };
  if (p.top_p < 1) {
    const std::vector<double> probabilities = softmax();
    std::vector<int32_t> order(x.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return x[a] < x[b]; });
    double sum = 0;
    for (size_t i = 0; i + 1 < order.size(); ++i) {  // one token always stays
      sum += probabilities[order[i]];
      if (sum <= 1 - p.top_p) x[order[i]] = none;
    }
  }
  const std::vector<double> probabilities = softmax();
  const double most = *std::max_element(probabilities.begin(), probabilities.end());
  for (size_t i = 0; i < x.size(); ++i) {
    if (probabilities[i] < p.min_p * most) x[i] = none;
  }
  return softmax();
}

// Draws at evenly spaced u: each token's share of them is its probability to 1 / draws.
std::vector<double> shares(const std::vector<float>& logits, const SamplingParams& p,
                           const std::vector<int32_t>& history, int draws) {
  PickScratch scratch;
  std::vector<double> share(logits.size(), 0);
  for (int i = 0; i < draws; ++i) {
    share[pick(logits, p, history, (i + 0.5) / draws, scratch)] += 1.0 / draws;
  }
  return share;
}

TEST(Sampling, DrawsFromTheDistributionThatTransformersWouldDrawFrom) {
  const std::vector<SamplingParams> cases = {
      {},
      {.temperature = 0.6},
      {.temperature = 2.5, .top_k = 7},
      {.temperature = 0.7, .top_k = 300},
      {.top_k = 90000},
      {.top_p = 0.9},
      {.temperature = 1.5, .top_p = 0.5},
      {.temperature = 0.9, .top_k = 40, .top_p = 0.8},
      {.top_p = 1e-6},
      {.top_k = 1},
      {.repetition_penalty = 1.3},
      {.min_p = 0.05},
      {.min_p = 1},
      {.temperature = 3, .min_p = 0.3},
      {.temperature = 0.7, .top_k = 15, .min_p = 0.02},
      {.temperature = 1.4, .top_p = 0.7, .min_p = 0.2},
      {.top_k = 60, .top_p = 0.95, .repetition_penalty = 1.1, .min_p = 0.1},
      {.temperature = 0.8, .top_k = 20, .top_p = 0.9, .repetition_penalty = 0.7}};
  const std::vector<int32_t> history = {3, 5, 5, 8, 13, 21, 34, 55, 89, 3};
  constexpr int kDraws = 4000;
  for (size_t c = 0; c < cases.size(); ++c) {
    const std::vector<float> logits = some_logits(701, static_cast<unsigned>(c));
    const std::vector<double> want = reference(logits, cases[c], history);
    const std::vector<double> got = shares(logits, cases[c], history, kDraws);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got[i], want[i], 1.1 / kDraws) << "case " << c << " token " << i;
    }
  }
}

TEST(Sampling, FrequenciesOfTheRandomStreamFollowTheProbabilities) {
  const std::vector<float> logits = some_logits(40, 7);
  const SamplingParams params{.temperature = 1.2};
  const std::vector<double> want = reference(logits, params, {});
  constexpr int kDraws = 20000;
  std::vector<int> count(logits.size(), 0);
  PickScratch scratch;
  for (int i = 0; i < kDraws; ++i) {
    // Samples and positions both vary.
    ++count[pick(logits, params, {}, uniform(42, i % 100, i / 100), scratch)];
  }
  double chi_square = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double expected = want[i] * kDraws;
    chi_square += (count[i] - expected) * (count[i] - expected) / expected;
  }
  EXPECT_LT(chi_square, 72.1);  // 39 degrees of freedom: exceeded by chance once in 1000
  EXPECT_GT(chi_square, 16.3);  // and this once in 1000 not reached
}

TEST(Sampling, GreedyTakesTheLargestAndOfEqualsTheLowestId) {
  std::vector<float> logits(50, -1.0f);
  logits[17] = logits[49] = logits[33] = 3.0f;
  PickScratch scratch;
  const SamplingParams greedy{.temperature = 0};
  EXPECT_EQ(pick(logits, greedy, {}, 0.99, scratch), 17);
  logits[49] = 3.5f;
  EXPECT_EQ(pick(logits, greedy, {}, 0.0, scratch), 49);
}

TEST(Sampling, GreedyHeedsTheRepetitionPenaltyWhichCountsATokenOnce) {
  PickScratch scratch;
  const std::vector<float> logits = {2.0f, 1.5f, -1.0f};
  const SamplingParams params{.temperature = 0, .repetition_penalty = 1.2};
  EXPECT_EQ(pick(logits, params, std::vector<int32_t>{0, 0, 0}, 0, scratch), 0);  // 2 / 1.2 > 1.5
  const SamplingParams more{.temperature = 0, .repetition_penalty = 1.5};
  EXPECT_EQ(pick(logits, more, std::vector<int32_t>{0}, 0, scratch), 1);
  const std::vector<float> negative = {-1.0f, -1.2f};
  EXPECT_EQ(pick(negative, more, std::vector<int32_t>{0}, 0, scratch), 1);
}

TEST(Sampling, TheEndsOfTheRandomRangeChooseATokenThatHasWeight) {
  PickScratch scratch;
  std::vector<float> logits(1200, -std::numeric_limits<float>::infinity());
  logits[600] = 0.5f;
  logits[601] = 0.25f;
  EXPECT_EQ(pick(logits, {}, {}, 0.0, scratch), 600);
  EXPECT_EQ(pick(logits, {}, {}, 1 - 0x1p-53, scratch), 601);
  EXPECT_EQ(pick(logits, {.top_p = 0.9}, {}, 1 - 0x1p-53, scratch), 601);
}

TEST(Sampling, ChoosesNoTokenFromLogitsThatAreNoNumbers) {
  PickScratch scratch;
  const auto choice = [&](float value, size_t at, double temperature) {
    std::vector<float> logits(40, value == -INFINITY ? value : 1.0f);
    logits[at] = value;
    return pick(logits, {.temperature = temperature}, {}, 0, scratch);
  };
  for (const double temperature : {0.0, 1.0}) {
    EXPECT_EQ(choice(NAN, 3, temperature), kNoToken);
    EXPECT_EQ(choice(NAN, 39, temperature), kNoToken);
    EXPECT_EQ(choice(INFINITY, 20, temperature), kNoToken);
    EXPECT_EQ(choice(-INFINITY, 0, temperature), kNoToken);
    EXPECT_NE(choice(2, 0, temperature), kNoToken);
  }
}

TEST(Sampling, RandomNumbersDifferBySeedSampleAndPositionAndRepeat) {
  std::set<double> seen;
  for (uint64_t seed : {0ull, 1ull, 1ull << 63}) {
    for (uint64_t sample = 0; sample < 10; ++sample) {
      for (uint64_t position = 0; position < 10; ++position) {
        const double u = uniform(seed, sample, position);
        EXPECT_EQ(u, uniform(seed, sample, position));
        EXPECT_TRUE(u >= 0 && u < 1);
        seen.insert(u);
      }
    }
  }
  EXPECT_EQ(seen.size(), 300u);
}

}  // namespace
}  // namespace twinkle::sampler
