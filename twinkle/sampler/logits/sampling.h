// The choice of a token from one row of logits, as pure functions: repetition penalty, temperature,
// top-k, top-p, min-p, in the order and with the meaning of transformers' generate, then one draw.
// A choice depends on its row, parameters and random number alone. V vocabulary.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "twinkle/sampler/params.h"

namespace twinkle::sampler {

// The random number in [0, 1) of token `position` (from 0 in the sequence, prompt included) of
// sample `sample`: Philox 4x32-10 (Salmon et al. 2011) at that counter, so that the order of
// execution does not matter. 53 bits.
double uniform(uint64_t seed, uint64_t sample, uint64_t position);

// The temperature of log-probabilities: greedy sampling reports the model's own.
float temperature_of(const SamplingParams& params);

// Memory that calls reuse; holds nothing between them.
struct PickScratch {
  std::vector<float> logits, weights, heap;
  std::vector<double> sums;
  std::vector<int32_t> ids;
};

inline constexpr int32_t kNoToken = -1;

// The token that random number `u` in [0, 1) chooses. `history` (prompt and generated tokens, each
// 0 <= id < V) is what repetition_penalty is for; at temperature 0 the largest logit wins, the
// lowest id of equals. kNoToken: a NaN or +inf among the logits, or -inf all over.
int32_t pick(std::span<const float> logits, const SamplingParams& params,
             std::span<const int32_t> history, double u, PickScratch& scratch);

// The tokens that random numbers choose by temperature alone: those that pick() chooses when
// nothing else is set, for one pass over the logits.
void draw(std::span<const float> logits, double temperature, std::span<const double> u,
          PickScratch& scratch, std::span<int32_t> out);

}  // namespace twinkle::sampler
