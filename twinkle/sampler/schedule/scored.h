// The tokens of a prompt that a step scores, what is found, and where that goes. Plain values: no
// torch, no model.
#pragma once
#include <cstdint>

#include "twinkle/sampler/sequence.h"

namespace twinkle::sampler {

// The first token of the prompt that gets any score; the prompt's size: none does.
int64_t first_scored(const Request& request);

struct Scored {
  // Those behind the tokens that the step computes of the sequence.
  static Scored of(const Sequence& s);

  Job* job;
  int64_t begin;  // they follow this token
  int64_t count;  // not above 0: none
  // Log-probabilities of all of them, the rest as asked for.
  PromptScores found = {};

  // Moves `found` behind the job's scores, all of it or nothing. -1, or the first token whose
  // log-probability is NaN: then nothing is moved.
  int64_t keep();
};

}  // namespace twinkle::sampler
