// What the sampler has done, and what its cache holds. Plain values.
#pragma once
#include <cstdint>
#include <string>

namespace twinkle::engine {

struct SamplingStats {
  int64_t num_samples = 0;                    // operations that have begun and not ended
  int64_t num_sequences = 0;                  // that are being sampled
  int64_t num_computed_tokens = 0;            // of prompts and generated, so far
  int64_t num_shared_tokens = 0;              // that needed no computing: others had begun alike
  int64_t num_pages = 0, num_free_pages = 0;  // of the cache; 0 before the first Sample
  int64_t page_tokens = 0;                    // whose keys and values a page holds
  std::string graph_failure;                  // why decoding is not recorded any more; or empty
};

}  // namespace twinkle::engine
