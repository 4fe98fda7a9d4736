// Facts about a model: its config, and the arithmetic that computes it here.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "twinkle/base/json.h"
#include "twinkle/engine/execute/adapter_size.h"
#include "twinkle/model/decoder.h"

namespace twinkle::engine {

struct ModelInfo {
  std::string family, directory, config_json;
  int64_t vocab_size = 0, max_positions = 0, num_layers = 0, num_parameters = 0;
  int64_t num_routed_layers = 0, num_experts_per_tok = 0;
  std::vector<int32_t> eos_ids;  // those of the model's configs, and the tokenizer's eos_token
  std::string bf16_products;     // kernels::linear_bf16_best()
  std::string arithmetic;        // JSON of arithmetic_of
  AdapterSizes adapter_sizes;    // for all linears and the head
  int64_t carried_bytes = 0;     // bytes of the tokenizer's files, which a checkpoint has
};

// "bf16" or "no". Error kInvalid: neither.
at::ScalarType dtype_named(const std::string& precision);

// The arithmetic that results' bits depend on besides their inputs: device, precision, products,
// torch and the instructions that it takes. Engines that agree in it get the same.
JsonObject arithmetic_of(at::ScalarType dtype, at::Device device, bool deterministic);

// Error kInvalid: eos_token_id, in config.json or generation_config.json, is neither an integer nor
// a list of them.
ModelInfo facts_of(model::Decoder& decoder, const Checkpoint& checkpoint);

}  // namespace twinkle::engine
