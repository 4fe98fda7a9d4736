#include "twinkle/sampler/params.h"

#include "twinkle/base/error.h"

namespace twinkle::sampler {
namespace {

template <class T>
void check(bool ok, const char* field, const T& value, const char* limit) {
  require(ok, Code::kInvalid, "sampler: ", field, " is ", value, ", it must be ", limit);
}

}  // namespace

void validate(const SamplingParams& p) {
  check(p.max_tokens >= 0, "max_tokens", p.max_tokens, "at least 0");
  // Below the lower limit a logit divided by it would leave float32, as it would itself above the
  // upper one.
  check(p.temperature == 0 || (p.temperature >= 1e-30 && p.temperature <= 1e30), "temperature",
        p.temperature, "0 (greedy) or from 1e-30 to 1e30");
  check(p.top_k == -1 || p.top_k >= 1, "top_k", p.top_k, "-1 (all) or at least 1");
  check(p.top_p > 0 && p.top_p <= 1, "top_p", p.top_p, "above 0 and at most 1");
  check(p.min_p >= 0 && p.min_p <= 1, "min_p", p.min_p, "from 0 to 1");
  // Beyond these a logit divided or multiplied by it may leave float32.
  check(p.repetition_penalty >= 1e-9 && p.repetition_penalty <= 1e9, "repetition_penalty",
        p.repetition_penalty, "from 1e-9 to 1e9");
  check(p.num_samples >= 1 && p.num_samples <= kMaxSamples, "num_samples", p.num_samples,
        "from 1 to 65536");
  const auto check_top = [](const char* field, int64_t k) {
    require(k >= 0 && k <= kMaxTopLogprobs, Code::kInvalid, "sampler: ", field, " is ", k,
            ", it must be from 0 to ", kMaxTopLogprobs);
  };
  check_top("top_logprobs", p.top_logprobs);
  check_top("top_prompt_logprobs", p.top_prompt_logprobs);
  check_top("prompt_alt_tokens", p.prompt_alt_tokens);
  check(p.prompt_logprobs_last_n >= 0, "prompt_logprobs_last_n", p.prompt_logprobs_last_n,
        "0 (all) or at least 1");
  require(p.prompt_logprobs_last_n == 0 || p.prompt_logprobs || p.top_prompt_logprobs > 0,
          Code::kInvalid, "sampler: prompt_logprobs_last_n is ", p.prompt_logprobs_last_n,
          ", but neither prompt_logprobs nor top_prompt_logprobs is asked for; ask for one");
  for (size_t i = 0, last = 1; i < p.prompt_targets.size(); ++i) {
    const auto [position, id] = p.prompt_targets[i];
    require(position >= static_cast<int64_t>(last) && id >= 0, Code::kInvalid,
            "sampler: prompt_targets[", i, "] has position ", position, " and id ", id,
            ", they must be at least ", last, " and 0: positions never fall");
    last = static_cast<size_t>(position);
  }
  for (size_t i = 0; i < p.stop.size(); ++i) {
    require(!p.stop[i].empty(), Code::kInvalid, "sampler: stop[", i,
            "] is \"\", it must hold at least 1 character");
  }
  for (size_t i = 0; i < p.stop_token_ids.size(); ++i) {
    require(p.stop_token_ids[i] >= 0, Code::kInvalid, "sampler: stop_token_ids[", i, "] is ",
            p.stop_token_ids[i], ", it must be at least 0");
  }
}

}  // namespace twinkle::sampler
