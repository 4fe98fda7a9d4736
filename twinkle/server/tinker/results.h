// Results as Tinker's protobuf (package tinker_public): ForwardBackwardOutput and SampleResponse.
// Knows no engine; docs/tinker.md has the schema.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "twinkle/server/tinker/tensor.h"

namespace twinkle::server::tinker {

// Float32 values of one datum, row-major: [N], or [N, K] with `width` K.
struct Array {
  std::vector<float> values;
  int64_t width = 0;  // 0: one dimension
};

struct ForwardBackwardOutput {
  // Of each datum in order; all have the same names.
  std::vector<std::map<std::string, Array>> data;
  std::map<std::string, double> metrics;  // "loss:sum"; may be NaN or infinite
};

std::string to_protobuf(const ForwardBackwardOutput& output);

// Likeliest tokens of each position; of fewer than k, the rest are filled with id 0 and -99999, as
// the SDK expects.
struct TopTokens {
  int64_t k = 0;
  std::vector<std::vector<std::pair<int32_t, float>>> rows;
};

struct SampledSequence {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;  // of each token
  bool at_length = false;       // it ended because of max_tokens
  std::optional<TopTokens> top = {};
};

struct PromptAltTokens {
  Tensor tokens, logprobs;  // [P - 1, k] each, of a prompt of P tokens
};

struct SampleResponse {
  std::vector<SampledSequence> sequences;
  std::optional<std::vector<float>> prompt_logprobs = {};  // NaN where there is none: the first
  std::optional<TopTokens> prompt_top = {};
  int32_t prompt_cache_hit_tokens = 0;
  std::optional<Tensor> prompt_targets = {};
  std::optional<PromptAltTokens> prompt_alt_tokens = {};
};

std::string to_protobuf(const SampleResponse& response);

}  // namespace twinkle::server::tinker
