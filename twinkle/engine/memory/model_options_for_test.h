// For tests: a small executor's options; a test changes what it is about.
#pragma once
#include <string>

#include "twinkle/engine/execute/decoder_executor.h"

namespace twinkle::engine {

inline EngineOptions small_model(const std::string& model) {
  return {.model = {.path = model, .activation_bytes = 0, .train_graphs = false},
          .sampler = {.kv_tokens = 1024, .max_sequences = 4, .decode_graphs = false}};
}

}  // namespace twinkle::engine
