// Statistics of the sampler and its cache. Plain values, copied without allocating.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

namespace twinkle::engine {

struct SamplingStats {
  int64_t num_samples = 0;                           // operations that have begun and not ended
  int64_t num_sequences = 0;                         // that are being sampled
  int64_t num_computed_tokens = 0;                   // tokens of prompts and generated ones, so far
  int64_t num_shared_tokens = 0;                     // not computed: found in the prefix cache
  int64_t num_pages = 0, num_free_pages = 0;         // in the cache; 0 before the first Sample
  int64_t page_tokens = 0;                           // tokens whose keys and values a page holds
  std::shared_ptr<const std::string> graph_failure;  // why decoding is not recorded; or null
};

}  // namespace twinkle::engine
