// Scheduler of sampling steps: the sequences of the next forward, and their pages. One token of
// each that decodes, and prompts as far as a budget goes, so that neither waits for the other. The
// budget is shared between the owners of requests as batches are between tenants
// (base/fair_share.h); an owner's oldest prompt comes first. A batch has max_sequences places; one
// that comes free goes to the owner that holds the fewest pages for its weight, among equals to the
// one that has been given some longest ago, and what waits costs a step nothing. Where there is no
// place, or no page, the newest sequence of the owner that has most places for its weight gives way
// to an owner that has fewer. When pages run out, the youngest sequences give theirs back. Both are
// computed again later, with the same bits. Sequences of the same weights that begin alike share
// pages: what one has computed others take, and what one is computing others wait for. Knows no
// tensors. One thread, the sampler's.
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "twinkle/base/fair_share.h"
#include "twinkle/sampler/cache/block_pool.h"
#include "twinkle/sampler/cache/prefix_cache.h"
#include "twinkle/sampler/cache/state_pool.h"
#include "twinkle/sampler/sequence.h"

namespace twinkle::sampler {

// The sequence of `computing` that computes the next page of `sequence` too, so that it should wait
// for it: the page, or all samples of an equal prompt. Null: none.
Sequence* leader_of(const Sequence& sequence, const std::vector<Sequence*>& computing);

class Schedule {
 public:
  // Sequences keep states of that layout, and as many snapshots of them as may run. Error kInvalid:
  // an option below 1.
  explicit Schedule(const SamplerOptions& options, const StateLayout& states = {});

  struct Work {
    std::vector<Sequence*> batch;  // each computes its tokens [computed, next)
    struct Copy {                  // a page to copy for a sequence
      const Sequence* of;
      int32_t from, to;
    };
    std::vector<Copy> copies;  // to be made first, in this order
  };

  void add(std::unique_ptr<Sequence> sequence);  // last in its owner's queue
  Work plan();
  // To be called when the planned forward has been computed.
  void advance(const std::vector<Sequence*>& batch);

  // The sequences whose next token can be chosen: `sequence`, or, when its prompt has just been
  // computed, all samples of its request and of those requests of the same prompt that waited.
  std::vector<Sequence*> fork(Sequence& sequence);

  // Frees sequences that have ended, and those whose job has; those that never began only with
  // `waiting`.
  void sweep(bool waiting = true);
  // After a step that threw: tokens that were computed and led to no next one are computed again.
  void resume();
  // Forgets the pages that no sequence holds; sequences that run neither take nor leave any from
  // here on.
  void reset_prefixes();

  bool empty() const { return num_sequences() == 0; }
  int64_t num_sequences() const { return std::ssize(sequences_) + num_waiting_; }
  int64_t num_running() const;
  const Sequence* newest() const;                            // the newest that runs; null: none
  int64_t num_shared_tokens() const { return num_shared_; }  // taken from others' pages so far
  const BlockPool& pool() const { return pool_; }

 private:
  // A prompt to compute for an owner: a sequence, its own or the one whose pages it waits for, and
  // how far it helps that this is computed.
  struct Prompt {
    Sequence* sequence;
    int64_t end;
  };
  static int64_t end_of(const Prompt& p) { return std::min(p.end, p.sequence->pass_end()); }
  struct Owner {
    Account account;  // in prompt tokens
    int32_t priority = 0;
    int64_t gave_way = -1;  // the step in which its last place went to another owner; -1: none has
    int64_t entered = 0;    // when its last newcomer began, as num_entered_ counts; 0: none has
    std::deque<std::unique_ptr<Sequence>> waiting;  // that never began; the oldest first
    // In the plan in the making:
    bool here = false;            // it has sequences
    int64_t held = 0;             // pages of what runs
    int64_t places = 0;           // in a batch; a prompt has as many as it will have samples
    std::deque<Sequence*> again;  // that began and have no place; older than those that wait
    std::vector<Prompt> prompts;

    Sequence* newcomer() const {
      return !again.empty() ? again.front() : waiting.empty() ? nullptr : waiting.front().get();
    }
  };

  // A plan in the making.
  struct Round {
    std::vector<Sequence*> computing;  // prompts, and what leads others
    int64_t placed = 0, width = 0;     // sequences with a place, now and as samples
    int64_t reserved = 0;              // pages of newcomers
    std::vector<Sequence*> giving;     // to the newcomer that is looked at, ...
    int64_t freed = 0;                 // ... and the pages that only they have
  };

  void attach(Sequence& sequence);
  void attach_state(Sequence& sequence);
  void adopt(Sequence& sequence, const Sequence& other);
  bool reserve(Sequence& sequence, int64_t end, Work& work);
  int64_t num_placed() const;
  void settle(Sequence& sample, int64_t& places);
  bool extend(Sequence& sequence, int64_t end, Work& work);
  void follow(const std::vector<Sequence*>& batch);
  // prefill.cpp:
  void admit();
  void begin_round();
  void enter(Owner& owner);
  bool add_prompt(Owner& owner, Sequence& sequence, std::vector<Sequence*>& computing);
  void prefill(Work& work);
  void distribute(const std::vector<Owner*>& owners, int64_t& budget, Work& work);
  void split(Sequence& sequence, std::vector<Sequence*>& out, int64_t& places);
  // places.cpp:
  bool make_room(Owner& owner, Sequence& newcomer, Round& round);
  bool may_give(const Sequence& sequence, const Owner& to) const;
  Sequence* giver_to(const Owner& owner, const Round& round);
  void take_from(Sequence& giver, Round& round, int64_t sign);
  void give_way(Sequence& giver, Round& round);
  Sequence* giver_of_pages(const Sequence& to);

  SamplerOptions options_;
  BlockPool pool_;
  PrefixCache prefixes_;
  StatePool states_;
  Snapshots snapshots_;  // at the ends of pages that the prefix cache knows
  // Sequences that began, by ticket, then sample; the oldest first.
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::deque<std::unique_ptr<Sequence>> arrived_;  // since the last plan
  int64_t num_entered_ = 0;                        // newcomers so far
  int64_t num_steps_ = 0;                          // plans so far
  int64_t num_waiting_ = 0;                        // those, and the owners' that never began
  std::vector<std::pair<Sequence*, Sequence*>>
      followers_;  // the plan's: a leader, and who waits for its prompt
  int64_t num_shared_ = 0;
  std::map<std::string, Owner> owners_;      // that have sequences
  std::map<std::string, uint64_t> sharers_;  // numbers from 1 on of owners that share no pages
  uint64_t turn_ = 0;
};

}  // namespace twinkle::sampler
