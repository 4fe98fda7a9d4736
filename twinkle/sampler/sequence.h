// A request on its way and the sequences of its samples: what is known of them between two
// forwards. Owned by the sampler and its schedule; no torch, no model.
#pragma once
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "twinkle/sampler/cache/block_pool.h"
#include "twinkle/sampler/cache/prefix_cache.h"
#include "twinkle/sampler/cache/state_pool.h"
#include "twinkle/sampler/request.h"
#include "twinkle/sampler/stop_strings.h"

namespace twinkle::sampler {

// Tokens that a sequence makes before it may lose its place again.
inline constexpr int64_t kTurnTokens = 32;

struct Job {
  int64_t ticket = 0;
  int rank = 0;  // the rank that computes it
  Request request;
  Decode decode;
  int64_t limit = 0;       // tokens to generate at most
  int64_t rope_row = 0;    // row of position 0 in rope's table, by the length it may reach
  uint64_t sharer = 0;     // the number of those who share its pages; the schedule's
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
  std::vector<Block> blocks;    // pages of its computed and planned tokens
  StatePool::Slot state;        // state after its computed tokens, where mixers keep one
  int64_t computed = 0;
  int64_t next = 0;      // end of what the running step computes
  bool running = false;  // it has been in a batch since it got its first page
  bool beyond =
      false;  // it runs, but a batch has no place for it: its request has too many samples
  bool may_run = false;  // in the plan in the making: it has a place, or gets one
  bool done = false;
  int64_t placed_size = 0;  // its tokens when it got its place
  int64_t gave_way = -1;    // the step in which it last lost its place or pages to others; -1: none
  size_t num_given = 0;     // generated tokens that are events already
  StopStrings stops;
  uint64_t version;             // the request's; 0 from when the prefix cache was reset
  int64_t num_linked = 0;       // its first pages that the prefix cache knows
  uint64_t linked_id = root();  // the id of the last of those
  int64_t shared_end = 0;       // tokens of pages that others have, whose state nobody kept
  // Where its computed tokens went, as Completion has it, and how much of that all ranks know.
  std::vector<int32_t> routes;
  size_t num_told = 0;

  Sequence(Job* job, int64_t sample)
      : job(job),
        sample(sample),
        tokens(job->request.prompt),
        stops(job->request.params.stop, job->decode),
        version(job->request.version) {}

  // The parent of its first page. Keys that were turned by other rows of rope's table are others,
  // whatever the tokens.
  uint64_t root() const { return root_of(job->sharer, job->rope_row != 0); }
  int64_t size() const { return std::ssize(tokens); }
  int64_t left() const { return size() - computed; }
  bool finishes() const { return next == size(); }
  // Places of a batch that it takes, now or when its prompt is computed.
  int64_t width() const { return job->forked ? 1 : job->request.params.num_samples; }
  bool planned() const { return next > computed; }
  bool has_place() const { return running && !beyond; }
  // True: it gave way before, and must not again: it has only just come back.
  bool just_came_back() const {
    return has_place() && gave_way >= 0 && size() - placed_size < kTurnTokens;
  }
  // Where the pass must end at the latest that computes it further: where a snapshot of its state
  // is wanted, which is only there at a pass's end. At the last page before the prompt's end, from
  // which requests of the same prompt and a talk's next turn go on, and where pages are shared.
  int64_t pass_end() const {
    if (!state || version == 0) return size();
    const int64_t prompt = (std::ssize(job->request.prompt) - 1) / kPageTokens * kPageTokens;
    int64_t end = size();
    for (const int64_t at : {prompt, shared_end}) end = at > computed && at < end ? at : end;
    return end;
  }
  bool wants_snapshot() const {
    const int64_t prompt = (std::ssize(job->request.prompt) - 1) / kPageTokens * kPageTokens;
    return state && version != 0 && computed > 0 && (computed == prompt || computed == shared_end);
  }
  // The known tokens of page `index`.
  std::span<const int32_t> page(int64_t index) const {
    return std::span(tokens).subspan(
        static_cast<size_t>(index * kPageTokens),
        static_cast<size_t>(std::min(kPageTokens, size() - index * kPageTokens)));
  }
  // Gives its pages back, the last first: the cache forgets ends before beginnings.
  void release() {
    while (!blocks.empty()) blocks.pop_back();
    state = {};
    computed = next = num_linked = 0;
    linked_id = root();
    shared_end = 0;
    running = beyond = false;
  }
  // Takes over what another sequence of the same tokens has computed, but for the state.
  void adopt(const Sequence& other) {
    blocks = other.blocks;
    computed = other.computed;
    next = other.next;
    running = other.running;
    placed_size = other.placed_size;
    gave_way = other.gave_way;
    num_linked = other.num_linked;
    linked_id = other.linked_id;
    routes = other.routes;
  }
};

}  // namespace twinkle::sampler
