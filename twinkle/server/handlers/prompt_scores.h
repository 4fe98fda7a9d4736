// A sample's scores of its prompt by Tinker's names: prompt_logprobs, topk_prompt_logprobs,
// target_prompt_logprobs, prompt_alt_tokens_k and prompt_logprobs_last_n. Knows requests and
// results, neither services nor futures.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "twinkle/base/json.h"
#include "twinkle/engine/protocol/operation.h"
#include "twinkle/engine/protocol/result.h"
#include "twinkle/server/tinker/results.h"

namespace twinkle::server {

// The integer of that name, absent 0, of likeliest or drawn tokens a place. Error kInvalid: below 0
// or above sampler::kMaxTopLogprobs.
int64_t read_top(const Json& body, const char* name);

// `rows`: of the last of num_tokens; those before have none.
tinker::TopTokens top_of(const std::vector<sampler::TopLogprobs>& rows, int64_t k,
                         int64_t num_tokens);

struct PromptSizes {
  int64_t tokens = 0, vocabulary = 0;
};

class PromptScoring {
 public:
  // Puts what the body asks for into `params`. Error kInvalid: a field out of its range, or that
  // does not fit the prompt; the text names it.
  PromptScoring(const Json& body, const PromptSizes& sizes, engine::SamplingParams& params);

  // The scores take these in a result.
  int64_t num_bytes() const;
  void answer(const sampler::PromptScores& scores, tinker::SampleResponse& out) const;

 private:
  int64_t num_tokens_, top_, alternatives_;
  bool logprobs_;
  std::optional<tinker::Tensor> targets_;  // ids of tokens; -1: none is asked for
};

}  // namespace twinkle::server
