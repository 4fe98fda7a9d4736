#include "twinkle/sampler/given/given_params.h"

#include <algorithm>

namespace twinkle::sampler {
namespace {

// 0 and 1 ask for the tokens' own alone.
int64_t num_likeliest(int64_t logprobs) { return logprobs > 1 ? logprobs : 0; }

}  // namespace

SamplingParams params_of(const GivenParams& p, int64_t room) {
  constexpr int64_t kMissing = GivenParams::kMissing;
  return {.max_tokens = p.max_tokens == kMissing ? std::min(room, kDefaultMaxTokens) : p.max_tokens,
          .seed = p.seed,
          .temperature = p.temperature,
          .top_k = p.top_k == 0 ? -1 : p.top_k,
          .top_p = p.top_p,
          .repetition_penalty = p.repetition_penalty,
          .num_samples = p.num_samples,
          .logprobs = p.logprobs != kMissing,
          .min_p = p.min_p,
          .top_logprobs = num_likeliest(p.logprobs),
          .prompt_logprobs = p.prompt_logprobs != kMissing,
          .top_prompt_logprobs = num_likeliest(p.prompt_logprobs),
          .routed_experts = p.routed_experts};
}

}  // namespace twinkle::sampler
