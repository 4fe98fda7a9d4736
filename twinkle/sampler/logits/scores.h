// Log-probabilities at the places of a prompt: of its own tokens, the likeliest, those drawn and
// those named. The bits are those that the trainer's head gives. Knows logits, not requests. V
// vocabulary, D width, N tokens.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "twinkle/kernels/softmax.h"
#include "twinkle/nn/linear.h"
#include "twinkle/sampler/params.h"

namespace twinkle::sampler {

// The k likeliest tokens of a row of logits [n, V] on the CPU, all when V is less; `stats` are the
// row's at `temperature`.
TopLogprobs likeliest(const at::Tensor& logits, int64_t row, int64_t k, float temperature,
                      const kernels::RowStats& stats);

// The head, and whose adapter works on it; -1: nobody's.
struct HeadOf {
  const nn::Linear& head;
  int32_t slot = -1;
};

// The scores of the prompt's tokens [first, first + N), 1 <= first, at the states [N, D] behind
// which they stand: those that `params` asks for, and log-probabilities of all. Logits exist for a
// few rows at a time.
PromptScores score_tokens(const at::Tensor& hidden_ND, const HeadOf& of,
                          std::span<const int32_t> prompt, int64_t first,
                          const SamplingParams& params);

}  // namespace twinkle::sampler
