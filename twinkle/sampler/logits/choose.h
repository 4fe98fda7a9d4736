// The next tokens of sequences, chosen from rows of logits, with the log-probabilities that their
// requests ask for. What a sequence gets depends on its row and itself alone. V vocabulary, R rows.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "twinkle/sampler/logits/sampling.h"
#include "twinkle/sampler/sequence.h"

namespace twinkle::sampler {

// A token to be chosen for a sequence from a row of logits.
struct Chosen {
  Sequence* sequence;
  int64_t row;  // -1: another rank has it
  int32_t token = kNoToken;
  float logprob = 0;
  TopLogprobs top = {};

  const SamplingParams& params() const { return sequence->job->request.params; }
  bool is_scored() const {
    return token != kNoToken && (params().logprobs || params().top_logprobs > 0);
  }
};

// Fills the tokens, kNoToken where a row has none, and scores of those with a row of logits [R, V].
void choose(const at::Tensor& logits_RV, std::span<Chosen> chosen);

}  // namespace twinkle::sampler
