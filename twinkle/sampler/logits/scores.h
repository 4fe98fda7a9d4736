// Log-probabilities of tokens that are there already: of a prompt, and of the likeliest at each
// place. The bits are those that the trainer's head gives. Knows logits, not requests. V
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

struct ScoreOptions {
  float temperature = 1;
  int64_t k = 0;  // likeliest tokens at each place
};

// Appends the scores of `ids` [N] at the states [N, D] behind which they stand. Logits exist for a
// few rows at a time.
void score_tokens(const at::Tensor& hidden_ND, const HeadOf& of, std::span<const int32_t> ids,
                  const ScoreOptions& options, PromptScores& out);

}  // namespace twinkle::sampler
