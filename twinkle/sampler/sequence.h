// A request on its way and the sequences of its samples: what is known of them between two
// forwards. Owned by the sampler and its schedule; no torch, no model.
#pragma once
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "twinkle/sampler/cache/block_pool.h"
#include "twinkle/sampler/request.h"
#include "twinkle/sampler/stop_strings.h"

namespace twinkle::sampler {

struct Job {
  int64_t ticket = 0;
  int rank = 0;  // which computes it
  Request request;
  Decode decode;
  int64_t limit = 0;       // tokens to generate at most
  bool forked = false;     // its prompt is computed, and is as many sequences as it has samples
  int64_t num_left = 0;    // samples that have not ended
  int64_t num_scored = 0;  // first tokens of the prompt that have their scores, or get none
  std::vector<Completion> completions;
  PromptScores prompt;

  int64_t prompt_size() const { return std::ssize(request.prompt); }
};

struct Sequence {
  Job* job;
  int64_t sample;
  std::vector<int32_t> tokens;  // prompt and generated
  std::vector<Block> blocks;    // of its first `computed` tokens
  int64_t computed = 0;
  int64_t next = 0;      // end of what the running step computes
  bool running = false;  // it has been in a batch since it got its first page
  bool may_run = false;  // in the plan in the making: it runs, or may begin
  bool done = false;
  size_t num_given = 0;  // generated tokens that are events already
  StopStrings stops;
  uint64_t version;        // of the request; 0 from when the prefix cache was reset
  int64_t num_linked = 0;  // its first pages that the prefix cache knows
  uint64_t linked_id = 0;  // the id of the last of those

  Sequence(Job* job, int64_t sample)
      : job(job),
        sample(sample),
        tokens(job->request.prompt),
        stops(job->request.params.stop, job->decode),
        version(job->request.version) {}

  int64_t size() const { return std::ssize(tokens); }
  int64_t left() const { return size() - computed; }
  bool finishes() const { return next == size(); }
  bool planned() const { return next > computed; }
  // The known tokens of page `index`.
  std::span<const int32_t> page(int64_t index) const {
    return std::span(tokens).subspan(
        static_cast<size_t>(index * kPageTokens),
        static_cast<size_t>(std::min(kPageTokens, size() - index * kPageTokens)));
  }
  // Gives its pages back, the last first: the cache forgets ends before beginnings.
  void release() {
    while (!blocks.empty()) blocks.pop_back();
    computed = next = num_linked = 0;
    linked_id = 0;
    running = false;
  }
  // Takes over what another sequence of the same tokens has computed.
  void adopt(const Sequence& other) {
    blocks = other.blocks;
    computed = other.computed;
    next = other.next;
    running = other.running;
    num_linked = other.num_linked;
    linked_id = other.linked_id;
  }
};

}  // namespace twinkle::sampler
