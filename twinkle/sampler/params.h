// What is asked of generation and what comes back. Plain values: no torch, no model.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace twinkle::sampler {

struct SamplingParams {
  int64_t max_tokens = 256;  // >= 1
  uint64_t seed = 0;         // the stream is keyed by (seed, sample index, position)
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;  // generation ends after one of these; the model's eos ids
                                        // are always among them
  double temperature = 1.0;             // 0: greedy
  int64_t top_k = -1;                   // -1: all
  double top_p = 1.0;
  double repetition_penalty = 1.0;
  int64_t num_samples = 1;
  bool logprobs = true;  // of the chosen tokens, under the unmodified distribution at `temperature`
  bool ignore_eos = false;
  double min_p = 0.0;  // tokens less probable than this share of the likeliest are out; 0: none is
};

struct Completion {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;  // of each token
  std::string stop_reason;      // "stop" or "length"
  std::string matched;          // the stop string that ended it, if one did
};

// Error kInvalid: a field outside its range; the text names field, value and limit.
void validate(const SamplingParams& params);

}  // namespace twinkle::sampler
