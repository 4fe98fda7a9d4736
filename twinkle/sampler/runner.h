// Generation over the decoder that trains: paged keys and values, continuous batching. Each step is
// one forward over the new tokens of all running sequences, prompts in pieces and one token of each
// that decodes; a request that ends makes room for those that wait. Tokens and log-probabilities of
// a request are, bit for bit, what it would get alone: neighbours, order of arrival and piece sizes
// change nothing. When pages run out, the youngest sequences give theirs back and are computed
// again later. Knows slots, not tenants. One thread, the one that runs the decoder.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "twinkle/model/decoder.h"
#include "twinkle/sampler/block_pool.h"
#include "twinkle/sampler/paged_cache.h"
#include "twinkle/sampler/params.h"
#include "twinkle/sampler/sampling.h"
#include "twinkle/sampler/stop_strings.h"

namespace twinkle::sampler {

struct Request {
  std::vector<int32_t> prompt;  // at least one token, 0 <= id < vocabulary
  SamplingParams params;
  int32_t slot = -1;  // adapter of every token, as in nn::Owners; -1: the base model
};

struct SamplerOptions {
  int64_t kv_tokens = 32768;     // tokens whose keys and values fit, all sequences together
  int64_t max_batch = 64;        // sequences in one forward
  int64_t prefill_tokens = 512;  // prompt tokens in one forward; more delay those that decode
  std::vector<int32_t> eos_ids;  // generation ends after one of these
};

struct Outcome {
  int64_t ticket = 0;
  std::vector<Completion> completions;  // [num_samples]; empty when it failed
  std::string error;                    // why it failed; empty: it did not
};

class Sampler {
 public:
  // The decoder outlives the sampler; its adapters and weights may change between generations.
  // Error kInvalid: an option below 1.
  Sampler(model::Decoder& decoder, const SamplerOptions& options);
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  // Completions by request and sample. `decode` turns token ids into text, for stop strings. Errors
  // as add(), before anything is computed, and a request's own failure; nothing stays queued.
  std::vector<std::vector<Completion>> generate(std::span<const Request> requests,
                                                const Decode& decode = {});

  // The same in steps. What add() refuses, without queueing. Error kInvalid: parameters out of
  // range, an empty prompt, one that leaves no room in the model's positions or in the cache, a
  // token outside the vocabulary, stop strings without `decode`.
  void check(const Request& request, bool has_decode) const;
  // Queues a request and returns its ticket, rising by one.
  int64_t add(Request request, Decode decode = {});
  // One forward. False when nothing is queued.
  bool step();
  // Those that ended since the last call, in the order of their end.
  std::vector<Outcome> take_outcomes();
  // Forgets a request; no outcome follows. False when it has ended already.
  bool cancel(int64_t ticket);

  // Pages that no sequence holds.
  int64_t num_free_pages() const { return pool_.num_free(); }
  // Tokens, of prompts and generated, that forwards have computed so far.
  int64_t num_computed_tokens() const { return num_computed_; }

 private:
  struct Job;
  struct Sequence;
  struct Chosen;

  std::vector<Sequence*> plan();
  bool reserve(Sequence& sequence, size_t index, int64_t end);
  at::Tensor forward(const std::vector<Sequence*>& batch);
  std::vector<Chosen> fork(const std::vector<Sequence*>& batch);
  void choose(const at::Tensor& logits, std::vector<Chosen>& chosen);
  void accept(Sequence& sequence, int32_t token, float logprob);
  void fail_job(Job& job, const std::string& error);
  void sweep();

  model::Decoder& decoder_;
  SamplerOptions options_;
  BlockPool pool_;
  PagedCache cache_;
  std::map<int64_t, std::unique_ptr<Job>> jobs_;      // by ticket
  std::vector<std::unique_ptr<Sequence>> sequences_;  // by ticket, then sample; the oldest first
  std::vector<Outcome> outcomes_;
  int64_t next_ticket_ = 0, num_computed_ = 0;
};

}  // namespace twinkle::sampler
