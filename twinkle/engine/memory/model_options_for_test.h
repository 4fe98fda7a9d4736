// For tests: a small executor's options; a test changes what it is about.
#pragma once
#include <string>

#include "twinkle/engine/execute/decoder_executor.h"

namespace twinkle::engine {

inline ModelOptions small_model(const std::string& model) {
  return {.model = model,
          .mixed_precision = "bf16",
          .device = "cpu",
          .value_head = false,
          .kv_tokens = 1024,
          .activation_bytes = 0,
          .max_sequences = 4,
          .prefill_tokens = 512,
          .parking = {},
          .deterministic = true,
          .decode_graphs = false,
          .train_graphs = false};
}

}  // namespace twinkle::engine
