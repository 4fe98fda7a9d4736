// Functions of the caller. They are called on the engine's thread, which waits for them: they must
// be quick. One that throws fails its Sample. They are destroyed before the Sample's future is
// ready.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "twinkle/sampler/params.h"

namespace twinkle::engine {

// A token of a Sample that runs.
struct TokenEvent {
  size_t prompt = 0, sample = 0;  // numbers of its completion
  int32_t token = 0;
  float logprob = 0;        // 0 when the Sample wants none
  std::string stop_reason;  // reason of the completion's end, with its last token; else empty
  sampler::TopLogprobs top_logprobs = {};  // as the completion's; empty unless asked for
};

// Token ids to text.
using Decode = std::function<std::string(std::span<const int32_t>)>;

// The decode of a Sample::tokenizer, for its stop strings; called on the thread that submits the
// Sample, where it may read files. What it throws refuses the Sample. Belongs to the engine: a
// Sample that is replayed finds its tokenizer again.
using Decoders = std::function<Decode(const std::string& tokenizer)>;

// With a Sample; no part of its value, which is stored and replayed.
struct SampleHooks {
  // Gets every token of the result, those of a completion in order, as soon as it is known; with
  // stop strings, when none can begin in it any more, or its completion ends. Nothing more comes
  // when the Sample fails or is cancelled. Empty: no listener.
  std::function<void(std::span<const TokenEvent>)> on_tokens = {};
};

}  // namespace twinkle::engine
