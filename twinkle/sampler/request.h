// Requests to the sampler, and its answers. Plain values.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "twinkle/base/fields/options.h"
#include "twinkle/sampler/params.h"

namespace twinkle::sampler {

struct Request {
  std::vector<int32_t> prompt;  // at least one token, 0 <= id < vocabulary
  SamplingParams params;
  int32_t slot = -1;     // adapter of every token, as in nn::Segment; -1: the base model
  uint64_t version = 0;  // names the weights, base and adapter: requests that give the same number
                         // share the pages of equal beginnings, now and later, so the caller never
                         // gives one number to two states of the weights. Those without an adapter
                         // share their owner's, or with share_prefixes all. 0: nothing is shared
  bool stream = false;   // its tokens are events as soon as they are known, see take_events()
  std::string owner = {};  // owners share the prompt tokens of a forward, places and pages, ...
  double weight = 1.0;     // > 0; ... by weight, that of an owner's newest request, ...
  int32_t priority = 0;    // ... among those of one priority: prompts of a higher one come first
};

struct SamplerOptions {
  int64_t kv_tokens = 32768;
  int64_t max_sequences = 64;
  int64_t prefill_tokens = 512;
  bool prefix_cache = true;
  bool share_prefixes = false;
  bool decode_graphs = true;

  static constexpr auto fields() {
    using O = SamplerOptions;
    return std::tuple{
        option("kv_tokens", &O::kv_tokens, between(1, kMostTokens),
               "tokens whose keys and values the sampler's cache holds, those that are kept for "
               "later requests included"),
        option("max_sequences", &O::max_sequences, between(1, kMostTokens),
               "sequences that are sampled at a time; more delay each other"),
        option("prefill_tokens", &O::prefill_tokens, between(1, kMostTokens),
               "prompt tokens of one sampling step; more read prompts faster and delay sequences "
               "that decode"),
        option("prefix_cache", &O::prefix_cache, any(),
               "sequences that begin alike share keys and values, now and later; changes no "
               "number"),
        option(
            "share_prefixes", &O::share_prefixes, any(),
            "tenants share keys and values of the base model, so that the time of a prompt shows "
            "whether another tenant has sent its beginning; changes no number [true in scripts, "
            "whose tenants are one user's; false in a service]"),
        option("decode_graphs", &O::decode_graphs, any(),
               "record decoding steps on a GPU and replay them; changes no number")};
  }
};

// A token of a request that streams.
struct Event {
  int64_t ticket = 0, sample = 0;
  int32_t token = 0;
  float logprob = 0;              // 0 when the request wants none
  std::string stop_reason;        // the completion's, when this is its last token; else empty
  TopLogprobs top_logprobs = {};  // empty unless asked for

  bool operator==(const Event&) const = default;
};

struct Outcome {
  int64_t ticket = 0;
  std::vector<Completion> completions;  // [num_samples]; empty when it failed
  PromptScores prompt;
  std::string error;  // why it failed; empty: it did not
};

}  // namespace twinkle::sampler
