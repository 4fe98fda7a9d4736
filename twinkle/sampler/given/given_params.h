// Parameters of generation as scripts and requests give them: some may be missing, and one number
// says which log-probabilities come. Plain values: no torch, no model.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include "twinkle/base/fields/options.h"
#include "twinkle/sampler/params.h"

namespace twinkle::sampler {

inline constexpr int64_t kDefaultMaxTokens = 2048;

struct GivenParams {
  static constexpr int64_t kMissing = -1;  // outside the limits of those that may be

  int64_t max_tokens = kMissing;
  uint64_t seed = 0;  // the caller's, where none is given
  double temperature = 1;
  int64_t top_k = -1;
  double top_p = 1;
  double repetition_penalty = 1;
  int64_t logprobs = kMissing;
  int64_t prompt_logprobs = kMissing;
  int64_t num_samples = 1;
  double min_p = 0;
  bool routed_experts = false;

  // Those that may be given as nothing: JSON's null, Python's None.
  static constexpr std::array<std::string_view, 4> kMayBeMissing = {"max_tokens", "seed",
                                                                    "logprobs", "prompt_logprobs"};

  static constexpr auto fields() {
    using P = GivenParams;
    return std::tuple{
        option("max_tokens", &P::max_tokens, between(0, kMostTokens),
               "longest answer, tokens; 0 only scores the prompt [2048, or the room behind it]"),
        option("seed", &P::seed, between(0, kAnyBits), "of the draws [the caller's]"),
        option("temperature", &P::temperature, between(0, 1e30), "0 is greedy"),
        option("top_k", &P::top_k, between(-1, kMostTokens),
               "most likely tokens to draw from; -1 and 0 are all"),
        option("top_p", &P::top_p, between(0, 1),
               "smallest set of tokens with this probability; above 0"),
        option(
            "repetition_penalty", &P::repetition_penalty, between(1e-6, 1e6),
            "divides the logits above 0 of tokens that are there already, multiplies those below"),
        option("logprobs", &P::logprobs, between(0, kMaxTopLogprobs),
               "0 or 1: the chosen tokens' log-probabilities; more: of so many likeliest, too "
               "[none]"),
        option("prompt_logprobs", &P::prompt_logprobs, between(0, kMaxTopLogprobs),
               "the same of the prompt's tokens [none]"),
        option("num_samples", &P::num_samples, between(1, kMaxSamples), "answers to one prompt"),
        option("min_p", &P::min_p, between(0, 1),
               "least probability, as a share of the likeliest's"),
        option("routed_experts", &P::routed_experts, any(),
               "where routers sent tokens, of a model with experts")};
  }
};

// The sampler's parameters, but for what ends an answer. `room`: tokens that fit behind the prompt.
// validate() of them finds a top_p of 0, and a temperature that is neither 0 nor within float32.
SamplingParams params_of(const GivenParams& given, int64_t room);

}  // namespace twinkle::sampler
