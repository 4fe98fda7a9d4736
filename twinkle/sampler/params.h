// Parameters of generation and its results. Plain values: no torch, no model.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "twinkle/base/fields.h"

namespace twinkle::sampler {

inline constexpr int64_t kMaxTopLogprobs = 128;  // distillation reads 64
inline constexpr int64_t kMaxSamples = 65536;    // samples of one prompt

// A service's limits on its clients' stop strings, for which each token's text is searched.
// validate() does not check them.
inline constexpr size_t kMaxStops = 64, kMaxStopBytes = 1024;

// A token that is scored at a place of the prompt, whatever the prompt has there.
struct PromptTarget {
  int32_t position = 0;  // 1 or more: the first token has none before it
  int32_t id = 0;

  bool operator==(const PromptTarget&) const = default;

  static constexpr bool kPacked = true;
  static constexpr auto fields() {
    return std::tuple{field(1, "position", &PromptTarget::position),
                      field(2, "id", &PromptTarget::id)};
  }
};

struct SamplingParams {
  int64_t max_tokens = 256;             // >= 0; 0: only the prompt is computed
  uint64_t seed = 0;                    // the stream is keyed by (seed, sample index, position)
  std::vector<std::string> stop;        // each of at least 1 byte
  std::vector<int32_t> stop_token_ids;  // generation ends after one of these; the model's eos ids
                                        // are always among them
  double temperature = 1.0;             // 0: greedy
  int64_t top_k = -1;                   // -1: all
  double top_p = 1.0;
  double repetition_penalty = 1.0;
  int64_t num_samples = 1;
  bool logprobs = true;  // the chosen tokens', under the unmodified distribution at `temperature`
  bool ignore_eos = false;
  double min_p = 0.0;  // tokens less probable than this share of the likeliest are out; 0: none is
  int64_t top_logprobs = 0;         // likeliest tokens that come with each generated one, 0 to 128,
                                    // under the distribution that `logprobs` has
  bool prompt_logprobs = false;     // the prompt tokens', under the same
  int64_t top_prompt_logprobs = 0;  // likeliest tokens that come with each of the prompt
  bool routed_experts = false;  // where routers sent tokens; such a request shares no others' pages
  int64_t prompt_logprobs_last_n = 0;  // prompt_logprobs and top_prompt_logprobs of the prompt's
                                       // last tokens alone, so that cached ones are skipped; 0: all
  int64_t prompt_alt_tokens = 0;  // tokens drawn for each of the prompt, 0 to 128, with replacement
                                  // and under the distribution that prompt_logprobs has
  std::vector<PromptTarget> prompt_targets;  // scored under it as well; positions never fall

  bool operator==(const SamplingParams&) const = default;
  static constexpr auto fields() {
    return std::tuple{field(1, "max_tokens", &SamplingParams::max_tokens),
                      field(2, "seed", &SamplingParams::seed),
                      field(3, "stop", &SamplingParams::stop),
                      field(4, "stop_token_ids", &SamplingParams::stop_token_ids),
                      field(5, "temperature", &SamplingParams::temperature),
                      field(6, "top_k", &SamplingParams::top_k),
                      field(7, "top_p", &SamplingParams::top_p),
                      field(8, "repetition_penalty", &SamplingParams::repetition_penalty),
                      field(9, "num_samples", &SamplingParams::num_samples),
                      field(10, "logprobs", &SamplingParams::logprobs),
                      field(11, "ignore_eos", &SamplingParams::ignore_eos),
                      field(12, "min_p", &SamplingParams::min_p),
                      field(13, "top_logprobs", &SamplingParams::top_logprobs),
                      field(14, "prompt_logprobs", &SamplingParams::prompt_logprobs),
                      field(15, "top_prompt_logprobs", &SamplingParams::top_prompt_logprobs),
                      field(16, "routed_experts", &SamplingParams::routed_experts),
                      field(17, "prompt_logprobs_last_n", &SamplingParams::prompt_logprobs_last_n),
                      field(18, "prompt_alt_tokens", &SamplingParams::prompt_alt_tokens),
                      field(19, "prompt_targets", &SamplingParams::prompt_targets)};
  }
};

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;

  bool operator==(const TokenLogprob&) const = default;

  static constexpr bool kPacked = true;
  static constexpr auto fields() {
    return std::tuple{field(1, "id", &TokenLogprob::id),
                      field(2, "logprob", &TokenLogprob::logprob)};
  }
};

// Likeliest first, of equals the lowest id.
using TopLogprobs = std::vector<TokenLogprob>;

struct Completion {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;            // one for each token
  std::string stop_reason;                // "stop" or "length"
  std::string matched;                    // the stop string that ended it, if one did
  std::vector<TopLogprobs> top_logprobs;  // for each token; empty unless asked for
  // [tokens x layers with routed experts x k] of the prompt's tokens and those generated, but the
  // last of these, which passes no layer; ascending in each layer. Empty unless asked for.
  std::vector<int32_t> routed_experts;

  bool operator==(const Completion&) const = default;
  static constexpr auto fields() {
    return std::tuple{field(1, "tokens", &Completion::tokens),
                      field(2, "logprobs", &Completion::logprobs),
                      field(3, "stop_reason", &Completion::stop_reason),
                      field(4, "matched", &Completion::matched),
                      field(5, "top_logprobs", &Completion::top_logprobs),
                      field(6, "routed_experts", &Completion::routed_experts)};
  }
};

// Scores of the prompt's second token and those behind it, each given those before it: P - 1 for a
// prompt of P tokens. Empty unless asked for.
struct PromptScores {
  std::vector<float> logprobs;            // the last prompt_logprobs_last_n, ...
  std::vector<TopLogprobs> top_logprobs;  // ... as are these
  std::vector<TokenLogprob> alt_tokens;   // [(P - 1) x prompt_alt_tokens]
  std::vector<float> target_logprobs;     // one for each of prompt_targets

  bool operator==(const PromptScores&) const = default;
  static constexpr auto fields() {
    return std::tuple{field(1, "logprobs", &PromptScores::logprobs),
                      field(2, "top_logprobs", &PromptScores::top_logprobs),
                      field(3, "alt_tokens", &PromptScores::alt_tokens),
                      field(4, "target_logprobs", &PromptScores::target_logprobs)};
  }
};

// Error kInvalid: a field outside its range; the text names field, value and limit.
void validate(const SamplingParams& params);

}  // namespace twinkle::sampler
