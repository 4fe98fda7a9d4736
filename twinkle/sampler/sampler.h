// Generation over the decoder that trains: paged keys and values, continuous batching. Each step is
// one forward over the new tokens of all running sequences, prompts in pieces and one token of each
// that decodes; a request that ends makes room for waiting ones. Tokens and log-probabilities of
// a request are, bit for bit, what it would get alone: neighbours, order of arrival, piece sizes
// and pages that others have computed change nothing. Knows slots, versions and owners' names, not
// tenants. One thread, the one that runs the decoder.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "twinkle/model/decoder.h"
#include "twinkle/sampler/cache/paged_cache.h"
#include "twinkle/sampler/decode_graphs.h"
#include "twinkle/sampler/logits/choose.h"
#include "twinkle/sampler/ranks/ranks.h"
#include "twinkle/sampler/request.h"
#include "twinkle/sampler/schedule/schedule.h"
#include "twinkle/sampler/schedule/scored.h"
#include "twinkle/sampler/stop_strings.h"

namespace twinkle::sampler {

class Sampler {
 public:
  // The decoder outlives the sampler; its adapters and weights may change between generations, see
  // Request::version. Error kInvalid: an option below 1.
  // Generation ends after one of eos_ids. `comm`: of ranks that make the same calls and share every
  // step's requests. It outlives the sampler.
  Sampler(model::Decoder& decoder, const SamplerOptions& options, std::vector<int32_t> eos_ids = {},
          mesh::Comm& comm = mesh::null_comm());
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  // Queues a request and returns its ticket, rising by one. `decode` turns token ids into text, for
  // stop strings. Requests run in this order, as many together as max_sequences and the pages
  // allow; those that wait cost a step nothing. Error kInvalid: parameters out of range, an empty
  // prompt, one that leaves no room in the model's positions or in the cache, a token outside the
  // vocabulary, stop strings without `decode`.
  int64_t add(Request request, Decode decode = {});
  // One forward. False when nothing is queued.
  bool step();
  // Those that ended since the last call, in the order of their end.
  std::vector<Outcome> take_outcomes();
  // Tokens of requests that stream, since the last call, in the order of their birth. Those of a
  // completion are a beginning of it: with stop strings a token waits until none can begin in its
  // text, or until its sequence ends. Every token is out before its request's outcome.
  std::vector<Event> take_events();
  // Forgets requests, whether they wait, compute their prompts or decode; neither an outcome nor an
  // event follows. How many of them had not ended.
  size_t cancel(std::span<const int64_t> tickets);
  bool cancel(int64_t ticket) { return cancel({&ticket, 1}) == 1; }
  // Tokens of a request that has not ended, so far.
  int64_t num_generated(int64_t ticket) const;
  // The ticket of the newest request that runs: memory that runs out may be its doing. -1: none.
  int64_t newest() const;

  // Forgets the pages of earlier requests. To be called when weights change in place while their
  // version stays, as training all weights does; sequences that run keep the pages that they have.
  void reset_prefix_cache() {
    schedule_.reset_prefixes();
    graphs_.forget();
  }

  // Pages that no sequence holds, those of the prefix cache included.
  int64_t num_free_pages() const { return schedule_.pool().num_free(); }
  // Sequences that have not ended: a request is one until its prompt is computed, then one per
  // sample; and those of them that run.
  int64_t num_sequences() const { return schedule_.num_sequences(); }
  int64_t num_running() const { return schedule_.num_running(); }
  // Tokens, of prompts and generated, that forwards of this rank have computed so far.
  int64_t num_computed_tokens() const { return num_computed_; }
  // Tokens of prompts, and of sequences that gave their pages back, that were found computed.
  int64_t num_shared_tokens() const { return schedule_.num_shared_tokens(); }
  // Pages that this rank has copied, for sequences that have left the others that began as they
  // did.
  int64_t num_copied_pages() const { return num_copied_; }
  int64_t num_pages() const { return schedule_.pool().num_pages(); }
  // Steps of decoding that a device took as one recorded graph.
  int64_t num_replays() const { return graphs_.num_replays(); }
  const std::shared_ptr<const std::string>& graph_failure() const { return graphs_.failure(); }

 private:
  void check(const Request& request, bool has_decode) const;
  std::vector<Chosen> forward_step(const std::vector<Sequence*>& batch, std::span<Scored> scored);
  at::Tensor forward(const std::vector<Sequence*>& batch);
  void score_prompts(const at::Tensor& hidden, const std::vector<Sequence*>& batch,
                     std::span<Scored> scored);
  void take(Scored& scored);
  void share(std::span<Scored> scored, std::vector<Chosen>& chosen);
  at::Tensor last_logits(const at::Tensor& hidden, const std::vector<Sequence*>& batch);
  void accept(Chosen& chosen);
  void accept_or_fail(Chosen& chosen);
  void give(Sequence& sequence, size_t count);
  void finish(Sequence& sequence);
  void fail_job(Job& job, const std::string& error);
  void sweep();

  model::Decoder& decoder_;
  const SamplerOptions options_;
  const std::vector<int32_t> eos_ids_;
  const Ranks ranks_;
  std::map<int64_t, std::unique_ptr<Job>> jobs_;  // by ticket
  Schedule schedule_;
  PagedCache cache_;
  DecodeGraphs graphs_;
  std::vector<Outcome> outcomes_;
  std::vector<Event> events_;
  int64_t next_ticket_ = 0, num_computed_ = 0, num_copied_ = 0;
};

}  // namespace twinkle::sampler
